"""Record the journal that the golden test replays: ``python tests/golden/make_journal.py``.

To be run, and its result looked at and committed, when the core is meant to decide otherwise or the records change.
"""

import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from loadline.sim.agent import AgentProcess  # noqa: E402 - the path comes first
from loadline.sim.chaos.plan import FaultPlan  # noqa: E402
from loadline.sim.chaos.settings import settings  # noqa: E402
from loadline.sim.chaos.world import TURN_SPACING_MS, World  # noqa: E402

JOURNAL = Path(__file__).parent / "journal"
SEED = 5
SEGMENTS_AT_MS = (0.0, 45_000.0, 80_000.0)
ENDS_MS = 120_000.0


class Segments:
    """``ports.Journal``: segments in memory, which begin at given times."""

    lost = 0

    def __init__(self, world: World) -> None:
        self.kept: list[list[bytes]] = []
        self._world = world

    @property
    def wants_snapshot(self) -> bool:
        """Whether the next segment is due."""
        number = len(self.kept)
        return number < len(SEGMENTS_AT_MS) and self._world.timeline.now_ms >= SEGMENTS_AT_MS[number]

    def begin(self, snapshot: Callable[[bool], bytes]) -> None:
        """Begin a segment."""
        self.kept.append([snapshot(bool(self.kept))])

    def append(self, record: bytes) -> None:
        """Keep it."""
        self.kept[-1].append(record)

    def close(self) -> None:
        """Nothing is pending."""


def scripted() -> list[list[bytes]]:
    """A rise and a fall of demand, a bus that goes away, and a lost worker, under a leader of its own."""
    world = World(FaultPlan(SEED, agents=0))
    timeline = world.timeline
    journal = Segments(world)
    world.begin()
    agent = AgentProcess(
        timeline,
        settings("agent-0"),
        world.bus.port(),
        world.store.port(),
        journal=journal,
        turn_spacing_ms=TURN_SPACING_MS,
    )
    timeline.at(5_000.0, lambda: world.demand.update({("whole", "both"): 3.5, ("split", "decode"): 2.5}))
    timeline.at(50_000.0, lambda: world.demand.update({("whole", "both"): 0.7, ("split", "prefill"): 0.3}))
    timeline.at(82_000.0, lambda: world.bus.set_up(up=False))
    timeline.at(102_000.0, lambda: world.bus.set_up(up=True))
    timeline.at(104_000.0, lambda: next(iter(world.workers.values())).end())
    timeline.at(115_000.0, agent.stop)
    timeline.run(ENDS_MS)
    return journal.kept


def main() -> None:
    """Write the segments anew."""
    for old in JOURNAL.glob("*.jsonl"):
        old.unlink()
    JOURNAL.mkdir(exist_ok=True)
    for number, segment in enumerate(scripted()):
        path = JOURNAL / f"20240101T000000.000Z-{number:06}.jsonl"
        path.write_bytes(b"".join(line + b"\n" for line in segment))


if __name__ == "__main__":
    main()
