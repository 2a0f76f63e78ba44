"""Record the journal that the golden test replays: ``python tests/golden/make_journal.py``.

To be run, and its result looked at and committed, when the core is meant to decide otherwise or the records change.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from loadline.core import events as ev  # noqa: E402 - the path comes first
from tests.support.world import START, World  # noqa: E402

JOURNAL = Path(__file__).parent / "journal"
SEED = 52
SECONDS = 75


def scripted() -> World:
    """A rise and a fall of demand, a bus that goes away, and a lost worker, under a leader of its own."""
    world = World(SEED, agents=1)
    world.demand = {"prefill": 1.0, "decode": 2.0, "both": 1.2}
    world.after(30_000, lambda: world.demand.update(prefill=0.3, decode=0.5))
    world.after(50_000, lambda: world.set_bus(up=False))
    world.after(52_000, lambda: world.set_bus(up=True))
    world.after(60_000, lambda: setattr(world.living[0], "alive", False))
    world.after(70_000, lambda: world.agents[0].put(ev.ShutdownRequested()))
    for at_ms in (25_000, 55_000):
        world.after(at_ms, world.agents[0].begin_segment)
    world.run(START + SECONDS * 1_000)
    return world


def main() -> None:
    """Write the segments anew."""
    for old in JOURNAL.glob("*.jsonl"):
        old.unlink()
    JOURNAL.mkdir(exist_ok=True)
    for number, segment in enumerate(scripted().agents[0].segments):
        path = JOURNAL / f"20240101T000000.000Z-{number:06}.jsonl"
        path.write_bytes(b"".join(line + b"\n" for line in segment))


if __name__ == "__main__":
    main()
