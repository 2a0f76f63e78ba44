"""Selection of requests: rules, orders, limits and properties."""

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from loadline.core.migration.requests import MigratableRequest, select_requests
from loadline.core.vocabulary.migrations import ALL_REQUESTS, MigrationOrder, MigrationRule

QUEUE = [
    MigratableRequest("r1", 500, 100),
    MigratableRequest("r2", 3_000, 10),
    MigratableRequest("r3", 200, 20),
    MigratableRequest("r4", 100, 0),
    MigratableRequest("w1", 400, 0, waiting=True),
    MigratableRequest("w2", 2_000, 0, waiting=True),
]
LIMITS: dict[str, Any] = {"requests_max": 64, "tokens_max": None, "hops_max": 3, "kv_tokens_total": 100_000}


def chosen(
    rule: MigrationRule,
    order: MigrationOrder,
    value: float,
    queue: list[MigratableRequest] | None = None,
    **limits: Any,
) -> list[str]:
    found = select_requests(QUEUE if queue is None else queue, rule, order, value, **(LIMITS | limits))
    return [one.request_id for one in found]


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("LCR", ["r3", "r2", "r1"]),
        ("FCR", ["r1", "r2", "r3"]),
        ("LR", ["r2", "r1", "r3"]),
        ("SR", ["r3", "r1", "r2"]),
        ("FCW", ["w1", "w2"]),
        ("FCWSR", ["w1", "w2", "r3", "r1", "r2"]),
    ],
)
def test_orders(order: MigrationOrder, names: list[str]) -> None:
    assert chosen("NUM_REQ", order, 64) == names
    assert chosen("NUM_REQ", order, 2) == names[:2]


def test_all_requests_are_waiting_and_then_running_ones() -> None:
    everyone = ["w1", "w2", "r1", "r2", "r3", "r4"]
    assert [chosen("NUM_REQ", order, ALL_REQUESTS) for order in get_args(MigrationOrder)] == [everyone] * 6


def test_a_selection_stays_within_its_value_and_fills_up_with_shorter_requests() -> None:
    assert chosen("TOKEN", "FCR", 900) == ["r1", "r3"]
    assert chosen("TOKEN", "FCR", 819) == ["r1"]
    assert chosen("RATIO", "LR", 0.0325) == ["r2", "r3"]


def test_the_first_request_goes_alone_if_all_are_too_long() -> None:
    assert chosen("TOKEN", "LR", 100) == ["r2"]
    assert chosen("TOKEN", "LR", 100, tokens_max=700) == ["r1"]
    assert chosen("TOKEN", "LR", 100, tokens_max=100) == []
    assert chosen("TOKEN", "LR", 100, requests_max=0) == []


@pytest.mark.parametrize("rule", ["NUM_REQ", "TOKEN", "RATIO"])
def test_a_value_of_zero_selects_nothing(rule: MigrationRule) -> None:
    assert chosen(rule, "SR", 0) == []


def test_a_ratio_of_an_unknown_capacity_selects_nothing() -> None:
    assert chosen("RATIO", "SR", 0.5, kv_tokens_total=0) == []


def test_tokens_max_bounds_all_rules() -> None:
    assert chosen("NUM_REQ", "FCR", 64, tokens_max=3_300) == ["r1", "r3"]
    assert chosen("NUM_REQ", "FCR", ALL_REQUESTS, requests_max=3) == ["w1", "w2", "r1"]
    assert chosen("TOKEN", "SR", 10_000, requests_max=1) == ["r3"]


def test_requests_with_fewer_hops_go_first() -> None:
    moved = [replace(one, hops=1) if one.request_id == "r3" else one for one in QUEUE]
    assert chosen("NUM_REQ", "LCR", 64, moved) == ["r2", "r1", "r3"]
    assert chosen("NUM_REQ", "LCR", 64, moved, hops_max=1) == ["r2", "r1"]
    assert chosen("NUM_REQ", "LCR", 64, hops_max=0) == []


def test_unmovable_and_ending_requests_stay() -> None:
    queue = [replace(QUEUE[0], movable=False), replace(QUEUE[1], remaining_tokens=1)]
    assert chosen("NUM_REQ", "FCR", ALL_REQUESTS, queue) == []
    assert chosen("NUM_REQ", "FCR", 1, [replace(QUEUE[1], remaining_tokens=2)]) == ["r2"]


CANDIDATES = st.lists(
    st.builds(
        MigratableRequest,
        request_id=st.just(""),
        prompt_tokens=st.integers(0, 50),
        output_tokens=st.integers(0, 5),
        waiting=st.booleans(),
        movable=st.booleans(),
        hops=st.integers(0, 3),
        remaining_tokens=st.none() | st.integers(0, 3),
    ),
    max_size=12,
).map(lambda found: [replace(one, request_id=str(number)) for number, one in enumerate(found)])
RULES = st.sampled_from(get_args(MigrationRule))
ORDERS = st.sampled_from(get_args(MigrationOrder))
VALUES = st.sampled_from([-1.0, 0.5]) | st.floats(0, 200)


LIMITED = st.fixed_dictionaries(
    {
        "requests_max": st.integers(0, 8),
        "tokens_max": st.none() | st.integers(0, 150),
        "hops_max": st.integers(0, 3),
        "kv_tokens_total": st.just(100),
    }
)


@given(CANDIDATES, RULES, ORDERS, VALUES, LIMITED)
def test_a_selection_never_exceeds_its_limits(
    queue: list[MigratableRequest], rule: MigrationRule, order: MigrationOrder, value: float, limits: dict[str, Any]
) -> None:
    found = select_requests(queue, rule, order, value, **limits)
    tokens = sum(one.tokens for one in found)
    assert len(found) <= limits["requests_max"]
    assert limits["tokens_max"] is None or tokens <= limits["tokens_max"]
    assert len({one.request_id for one in found}) == len(found)
    assert all(one in queue and one.movable and one.hops < limits["hops_max"] for one in found)
    if rule == "NUM_REQ":
        assert value == ALL_REQUESTS or len(found) <= value
    else:
        assert len(found) <= 1 or tokens <= value * (100 if rule == "RATIO" else 1)
    assert [one.hops for one in found] == sorted(one.hops for one in found)


@given(CANDIDATES, ORDERS, st.integers(0, 12))
def test_a_larger_value_extends_the_selection(
    queue: list[MigratableRequest], order: MigrationOrder, number: int
) -> None:
    more = chosen("NUM_REQ", order, number + 1, queue)
    assert chosen("NUM_REQ", order, number, queue) == more[:number]


@given(CANDIDATES.flatmap(lambda queue: st.tuples(st.just(queue), st.permutations(queue))))
def test_the_queue_order_decides_between_equals(
    pair: tuple[list[MigratableRequest], list[MigratableRequest]],
) -> None:
    lengths = [[one.tokens for one in select_requests(queue, "NUM_REQ", "SR", 99, **LIMITS)] for queue in pair]
    assert lengths[0] == lengths[1]
