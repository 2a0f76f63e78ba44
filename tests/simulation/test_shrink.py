"""A plan that breaks something is cut down to a short one, and survives being kept."""

from pathlib import Path

import pytest

from loadline.errors import DataError
from loadline.sim.chaos import saved_plan as kept
from loadline.sim.chaos.invariants import INVARIANTS, Violation
from loadline.sim.chaos.plan import Fault, FaultPlan, draw
from loadline.sim.chaos.shrink import Shrinker
from loadline.sim.world.bus import BusFaults

NAME = next(iter(INVARIANTS))


def breaks(plan: FaultPlan) -> Violation | None:
    """As if a bus that goes away for 10 s or more, and then an agent that is killed, broke something."""
    down = next((s for s in plan.faults if s.kind == "bus_down" and s.duration_ms >= 10_000), None)
    killed = [s for s in plan.faults if s.kind == "agent_killed" and down and s.at_ms > down.at_ms]
    return Violation(NAME, killed[0].at_ms, "") if killed else None


def breaking_plan() -> FaultPlan:
    return next(plan for plan in map(draw, range(100)) if breaks(plan))


def test_only_what_matters_is_left() -> None:
    plan = breaking_plan()
    shrinker = Shrinker(breaks, NAME)
    short = shrinker.shrink(plan)
    assert [fault.kind for fault in short.faults] == ["bus_down", "agent_killed"]
    assert 10_000 <= short.faults[0].duration_ms < 20_000
    assert (short.bus, short.agents, short.clock_skew_ms_max) == (BusFaults(), 1, 0.0)
    assert short.hours <= plan.hours
    assert breaks(short)
    assert shrinker.tries <= 300


def test_another_violation_is_not_the_one_that_is_looked_for() -> None:
    plan = breaking_plan()
    assert Shrinker(breaks, "I2-fence").shrink(plan) == plan


def test_it_gives_up_after_so_many_plays() -> None:
    shrinker = Shrinker(breaks, NAME, tries_max=5)
    shrinker.shrink(breaking_plan())
    assert shrinker.tries == 5


def test_a_kept_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = kept.SavedPlan("I1-order", "why", draw(3))
    kept.write(written, tmp_path / "seeds" / "it.json")
    assert kept.read(tmp_path / "seeds" / "it.json") == written


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "not a saved plan"),
        (b"\xff", "not a saved plan"),
        (b"[" * 100_000, "not a saved plan"),
        (b'{"violated":"","detail":"","plan":{"seed":1,"more":2}}', "more"),
        (b'{"violated":"","detail":"","plan":{"seed":1,"faults":[{"kind":"flood","at_ms":0}]}}', "there is no fault"),
    ],
)
def test_what_is_no_kept_plan_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "it.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=said):
        kept.read(path)
    with pytest.raises(DataError, match="cannot be read"):
        kept.read(tmp_path / "missing.json")


def test_a_plan_is_drawn_from_its_seed_alone() -> None:
    assert draw(5) == draw(5) != draw(6)
    assert all(isinstance(fault, Fault) for fault in draw(5).faults)
