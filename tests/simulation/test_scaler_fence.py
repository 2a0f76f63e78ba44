"""Fence of the scaler in the simulated world: forged numbers, former leaders, and a store that was wiped."""

from loadline.client.fence import CHALLENGE_S, DecisionFence
from loadline.sim.chaos.plan import Fault, FaultPlan
from loadline.sim.chaos.runner import ChaosRun
from loadline.sim.world.store import StoreBackup
from tests.simulation.mutation_runs import combined, constant

HOURS = 0.25
"""One cycle: 12 minutes of faults, and 3 without."""
MODEL = "split"
FORMER_LEADER = Fault("former_leader", 100_000, 600_000, level=0.0)
"""A former leader of the model, which decides every 10 s."""
NUMBER_FORGED = Fault("number_forged", 100_000, level=0.0)
DEMANDS = tuple(Fault("demand", at_ms, level=level) for at_ms, level in ((20_000, 0.2), (110_000, 0.25)))
HOUR_MS = 3_600_000
WITHOUT_CONFIRMATION = combined(
    constant(DecisionFence, "to_ask", ()), constant(DecisionFence, "_is_confirmed", value=True)
)


class Run(ChaosRun):
    """Run of one agent with these faults, which records the epochs that the scaler follows, and since when in s."""

    def __init__(self, *faults: Fault) -> None:
        ordered = sorted((*faults, *DEMANDS), key=lambda one: one.at_ms)
        super().__init__(FaultPlan(3, HOURS, agents=1, faults=tuple(ordered)))
        self.epochs: list[tuple[float, int]] = []
        self._watch()

    def _watch(self) -> None:
        in_force = self.world.scaler_bus.in_force.get(MODEL)
        if in_force is not None and (not self.epochs or self.epochs[-1][1] != in_force.epoch):
            self.epochs.append((self.world.timeline.now_ms / 1_000, in_force.epoch))
        self.world.timeline.call_later(100.0, self._watch)

    def violated(self) -> str:
        violation = self.run().violation
        return "" if violation is None else f"{violation.name} {violation.detail}"


def test_no_decision_of_a_former_leader_is_applied_while_the_present_one_answers() -> None:
    run = Run(FORMER_LEADER)
    assert run.violated() == ""
    assert len(run.epochs) == 1
    assert run.injector.injected["former_leader"] == 1


def test_a_former_leader_is_followed_only_after_a_minute_without_the_present_one_and_until_it_returns() -> None:
    cut_s, back_s = 200.0, 350.0
    run = Run(FORMER_LEADER, Fault("agent_off_bus", cut_s * 1_000, (back_s - cut_s) * 1_000))
    assert run.violated() == ""
    (_, present), (followed_s, former), (returned_s, again) = run.epochs
    assert former < present < again, "the agent leads in another term"
    assert followed_s >= cut_s + CHALLENGE_S
    assert back_s < returned_s <= back_s + CHALLENGE_S


def test_a_scaler_follows_again_after_a_forged_number() -> None:
    run = Run(NUMBER_FORGED)
    assert run.violated() == ""
    assert run.injector.injected["number_forged"] == 1


def test_the_world_detects_a_scaler_that_lowers_its_fence_without_a_confirmation() -> None:
    with WITHOUT_CONFIRMATION():
        assert Run(FORMER_LEADER).violated().startswith(f"I2-applied {MODEL}")


def test_the_world_detects_a_scaler_that_never_lowers_its_fence() -> None:
    with constant(DecisionFence, "_is_of_leader", value=False)():
        assert Run(NUMBER_FORGED).violated().startswith("L4-hold")


def test_a_scaler_follows_within_two_minutes_after_a_wipe_that_lowers_the_epoch() -> None:
    """All agents restart after it, with a clock an hour behind, by which the epoch falls."""
    run = Run(Fault("demand", 200_000, level=0.6))
    world, timeline = run.world, run.world.timeline
    world.start()
    timeline.run_until(150_000.0)
    ((_, before),) = run.epochs
    world.store.restore(StoreBackup())
    world.kill_agent(world.agents["agent-0"])
    world.start_agent("agent-0", clock_skew_ms=-HOUR_MS)
    while world.scaler_bus.decisions[MODEL].epoch == before and timeline.now_ms < 400_000.0:
        timeline.run_until(timeline.now_ms + 100.0)
    decided_s = timeline.now_ms / 1_000
    timeline.run_until(timeline.now_ms + 120_000.0)
    after_s, after = run.epochs[-1]
    assert after < before
    assert after_s - decided_s >= CHALLENGE_S
