"""Bounds of engine metrics: what they accept, agents accept."""

import math
from typing import Any

import msgspec
import pytest

from loadline.core.vocabulary import scalars
from loadline.engine_metrics import bounds
from loadline.engine_metrics.bounds import Bounds

KINDS = {
    "ARRIVAL_COUNT": scalars.ArrivalCount,
    "BATCH_COUNT": scalars.BatchCount,
    "BLOCK_COUNT": scalars.BlockCount,
    "MILLISECONDS": scalars.Milliseconds,
    "QUEUE_COUNT": scalars.QueueCount,
    "RATIO": scalars.Ratio,
    "TOKEN_COUNT": scalars.TokenCount,
    "TOKENS": scalars.Tokens,
}
EDGES = (0.0, 5e-324, 1e-3, 0.4, 0.5, 1.0, 65_536.0, 1e7, 1e9, 3.6e9, 1e12, 2.0**53, 1e308, math.inf, math.nan)


@pytest.mark.parametrize(("name", "kind"), KINDS.items(), ids=KINDS)
def test_agents_accept_what_is_within_the_bounds_and_refuse_the_rest(name: str, kind: Any) -> None:
    found: Bounds = getattr(bounds, name)
    for edge in EDGES:
        for value in (
            edge,
            -edge,
            edge - 0.5,
            edge + 0.5,
            edge + 1,
            math.nextafter(edge, math.inf),
            math.nextafter(edge, 0.0),
        ):
            accepted = found.accept(value)
            whole = found.whole and abs(value) <= 2**53
            tiny = 0 < value < scalars.LENGTH_MIN and kind in {scalars.Milliseconds, scalars.Tokens}
            expected = None if tiny else converted(round(value) if whole else value, kind)
            assert (accepted, type(accepted)) == (expected, type(expected)), value


def converted(value: float, kind: Any) -> float | None:
    try:
        return msgspec.convert(value, kind)  # type: ignore[no-any-return]
    except msgspec.ValidationError:
        return None
