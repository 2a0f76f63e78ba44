"""Journal in memory, and a single agent that writes it in the simulated world."""

from collections.abc import Callable, Sequence

from loadline.sim.chaos.plan import TURN_SPACING_MS, FaultPlan
from loadline.sim.chaos.settings import chaos_settings
from loadline.sim.chaos.world import ChaosWorld
from loadline.sim.world.agent import SimulatedAgent


class Segments:
    """``ports.Journal``: segments that begin at given virtual times, in ms."""

    lost = 0

    def __init__(self, world: ChaosWorld, begin_at_ms: Sequence[float]) -> None:
        self.kept: list[list[bytes]] = []
        self._world = world
        self._begin_at_ms = begin_at_ms

    @property
    def wants_snapshot(self) -> bool:
        """Return whether the next segment is due."""
        number = len(self.kept)
        return number < len(self._begin_at_ms) and self._world.timeline.now_ms >= self._begin_at_ms[number]

    def begin(self, snapshot: Callable[[bool], bytes]) -> None:
        """Begin a segment."""
        self.kept.append([snapshot(bool(self.kept))])

    def append(self, record: bytes, *, at_once: bool = False) -> None:  # noqa: ARG002 - nothing waits
        """Append a record."""
        self.kept[-1].append(record)

    def close(self) -> None:
        """Do nothing: no write is pending."""


def single_agent(seed: int, begin_at_ms: Sequence[float]) -> tuple[ChaosWorld, SimulatedAgent, Segments]:
    """Return a world without faults that has one agent."""
    plan = FaultPlan(seed, agents=0)
    world = ChaosWorld(plan)
    segments = Segments(world, begin_at_ms)
    world.start()
    agent = SimulatedAgent(
        world.timeline,
        chaos_settings("agent-0", plan),
        world.bus.connection(),
        world.store.connection(),
        journal=segments,
        turn_spacing_ms=TURN_SPACING_MS,
    )
    return world, agent, segments
