"""Shrinking of a plan that violates an invariant, and its file."""

from pathlib import Path

import pytest

from loadline.errors import DataError
from loadline.sim.chaos import saved_plan
from loadline.sim.chaos.invariants import INVARIANTS, Violation
from loadline.sim.chaos.plan import Fault, FaultPlan, draw
from loadline.sim.chaos.shrink import Shrinker
from loadline.sim.world.bus import BusFaults

NAME = next(iter(INVARIANTS))


def violation_of(plan: FaultPlan) -> Violation | None:
    """Report a violation if the bus stops for 10 s or more and an agent is killed after that."""
    outage = next((f for f in plan.faults if f.kind == "bus_down" and f.duration_ms >= 10_000), None)
    killed = [f for f in plan.faults if f.kind == "agent_killed" and outage and f.at_ms > outage.at_ms]
    return Violation(NAME, killed[0].at_ms, "") if killed else None


def violating_plan() -> FaultPlan:
    return next(plan for plan in map(draw, range(100)) if violation_of(plan))


def test_a_plan_is_shrunk_to_the_faults_that_violate_the_invariant() -> None:
    plan = violating_plan()
    shrinker = Shrinker(violation_of, NAME)
    shrunk = shrinker.shrink(plan)
    assert [fault.kind for fault in shrunk.faults] == ["bus_down", "agent_killed"]
    assert 10_000 <= shrunk.faults[0].duration_ms < 20_000
    assert (shrunk.bus, shrunk.agents, shrunk.clock_skew_ms_max) == (BusFaults(), 1, 0.0)
    assert shrunk.hours <= plan.hours
    assert violation_of(shrunk)
    assert shrinker.tries <= 300


def test_a_plan_that_violates_another_invariant_is_returned_unchanged() -> None:
    plan = violating_plan()
    assert Shrinker(violation_of, "I2-fence").shrink(plan) == plan


def test_shrinking_stops_after_the_maximum_number_of_runs() -> None:
    shrinker = Shrinker(violation_of, NAME, tries_max=5)
    shrinker.shrink(violating_plan())
    assert shrinker.tries == 5


def test_a_saved_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = saved_plan.SavedPlan("I1-order", "why", draw(3))
    saved_plan.write(written, tmp_path / "seeds" / "plan.json")
    assert saved_plan.read(tmp_path / "seeds" / "plan.json") == written


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not a saved plan"),
        (b"\xff", "not a saved plan"),
        (b"[" * 100_000, "not a saved plan"),
        (b'{"violated":"","detail":"","plan":{"seed":1,"more":2}}', "more"),
        (b'{"violated":"","detail":"","plan":{"seed":1,"faults":[{"kind":"flood","at_ms":0}]}}', "there is no fault"),
    ],
)
def test_a_file_that_is_not_a_saved_plan_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        saved_plan.read(path)
    with pytest.raises(DataError, match="cannot be read"):
        saved_plan.read(tmp_path / "missing.json")


def test_a_plan_depends_on_its_seed_only() -> None:
    assert draw(5) == draw(5) != draw(6)
    assert all(isinstance(fault, Fault) for fault in draw(5).faults)
