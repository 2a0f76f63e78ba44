"""Counts of tokens that no engine can mean neither reach a report nor spoil the lengths of later arrivals."""

from typing import Any

import pytest

from loadline.gateway.traffic import Measured


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": -1_000_000, "completion_tokens": 5},
        {"prompt_tokens": 5, "completion_tokens": -1},
        {"prompt_tokens": 10_000_001, "completion_tokens": 5},
        {"prompt_tokens": 5, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": -1}},
        {"prompt_tokens": "5"},
        [],
        None,
    ],
)
def test_an_impossible_usage_is_ignored(usage: object) -> None:
    measured = Measured(0.0, chars=40, osl_tokens=3)
    measured.read_usage(usage)
    assert (measured.isl_tokens, measured.osl_tokens, measured.cached_tokens) == (None, 3, None)


def test_no_more_tokens_are_cached_than_the_prompt_has() -> None:
    usage: dict[str, Any] = {
        "prompt_tokens": 10,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 99},
    }
    measured = Measured(0.0, chars=40)
    measured.read_usage(usage)
    assert (measured.isl_tokens, measured.osl_tokens, measured.cached_tokens) == (10, 3, 10)
