"""Properties of every migrate command for arbitrary reports and answers of workers."""

from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from loadline.core.controller import Controller
from loadline.core.migration.knobs import FailoverDomain, MetricName, MigrationKnobs
from tests.support.migrating_fleet import CAPACITY, MigratingFleet, WorkerTruth, registered_backwards, replayed
from tests.support.migration_world import MigrationWorld

NAMES = st.sampled_from([f"w{number}" for number in range(6)])
KV: MetricName = "kv_cache_usage_ratio_projected"
NUMBERS = st.integers(0, 8)
DOMAINS: list[FailoverDomain] = ["instance", "node", "instance-unit", "node-unit"]
Action = tuple[str, dict[str, Any]]


def action(what: str, /, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Action]:
    return st.tuples(st.just(what), st.fixed_dictionaries(arguments))


RECORD = {
    "node": st.sampled_from(["", "n1", "n2"]),
    "unit": st.sampled_from(["", "u1", "u2"]),
    "state": st.sampled_from(["ready", "ready", "ready", "draining"]),
}
REPORT = action(
    "report",
    name=NAMES,
    used=st.integers(0, CAPACITY),
    running=st.integers(0, 12),
    schedulable=st.sampled_from([True, True, True, False]),
    unmovable=st.integers(0, 2),
    tells_kv=st.sampled_from([True, True, True, False]),
)
ACTIONS = st.one_of(
    *(REPORT for _ in range(8)),
    action("answer", number=NUMBERS, accepted=st.sampled_from([True, True, False, None]), begins=st.booleans()),
    action("answer", number=NUMBERS, accepted=st.just(True), begins=st.just(True)),  # noqa: FBT003 - of hypothesis
    action("progress", number=NUMBERS, fails=st.booleans(), delivered=st.booleans()),
    action("progress", number=NUMBERS, fails=st.just(False), delivered=st.just(True)),  # noqa: FBT003 - of hypothesis
    action("pass_time", ms=st.sampled_from([1, 100, 500, 2_000, 4_500, 40_000])),
    action("register", name=NAMES, **RECORD),
    action("leave", name=NAMES),
    action("connect", bus=st.sampled_from([True, True, False])),
    action("pause", paused=st.sampled_from([True, False, False])),
)


@st.composite
def knobs(draw: st.DrawFn) -> MigrationKnobs:
    metric, at = draw(st.sampled_from([(KV, 0.0), (KV, 0.5), (KV, 0.8), ("num_requests", 4.0), ("num_tokens", 100.0)]))
    return MigrationKnobs(
        decode_load_metric=metric,
        decode_load_threshold=at,
        req_select_rule=draw(st.sampled_from(["TOKEN", "NUM_REQ", "RATIO"])),
        req_select_value=draw(st.sampled_from([-1.0, 0.1, 50.0])),
        failover_domain=draw(st.sampled_from(DOMAINS)),
        load_balance_threshold=draw(st.sampled_from([0.1, 0.5])),
        load_balance_scope=draw(st.sampled_from(["cluster", "unit"])),
        migrations_max=draw(st.sampled_from([1, 5, 64])),
        migrations_per_worker_max=draw(st.sampled_from([1, 4, 16])),
        ttl_ms=3_000,
    )


@st.composite
def histories(draw: st.DrawFn) -> MigratingFleet:
    """Return a fleet after some dozens of events."""
    fleet = MigratingFleet(draw(knobs()), [WorkerTruth(draw(st.integers(0, 6))) for _ in range(6)])
    fleet.begin({name: {key: draw(value) for key, value in RECORD.items()} for name in fleet.hosts})
    for what, arguments in draw(st.lists(ACTIONS, min_size=20, max_size=80)):
        getattr(fleet, what)(**arguments)
    return fleet


@settings(max_examples=120, deadline=None)
@given(histories(), st.integers(0, 1_000))
def test_commands_respect_the_workers_and_replay_from_any_snapshot(fleet: MigratingFleet, at: int) -> None:
    turns = fleet.recorded.turns
    cut = at % len(turns)
    controller = Controller(fleet.world.settings)
    assert replayed(controller, turns[cut:], turns[cut].before) == [turn.effects for turn in turns[cut:]]
    assert controller.snapshot() == fleet.recorded.controller.snapshot()


@settings(max_examples=60, deadline=None)
@given(histories())
def test_the_order_of_registrations_makes_no_difference(fleet: MigratingFleet) -> None:
    turns = fleet.recorded.turns
    again = replayed(MigrationWorld(fleet.knobs).controller, registered_backwards(turns))
    assert again == [turn.effects for turn in turns]
