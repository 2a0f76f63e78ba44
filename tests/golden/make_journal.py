"""Record the journal that the golden test replays: ``python tests/golden/make_journal.py``.

Run it, review the journal and commit it when the core's decisions are meant to change or the records change.
Raise ``FORMAT`` in ``runtime/journal_records.py`` where fields of records, settings or snapshots have changed.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from loadline.adapters.journal_checksums import ChecksumChain  # noqa: E402 - the path comes first
from tests.support.segments import single_agent  # noqa: E402

JOURNAL = Path(__file__).parent / "journal"
SEED = 5
SEGMENTS_AT_MS = (0.0, 40_000.0, 70_000.0)
ENDS_MS = 93_000.0


def scripted() -> list[list[bytes]]:
    """Run a leader through a rise and a fall of demand, a bus outage and the loss of a worker."""
    world, agent, journal = single_agent(SEED, SEGMENTS_AT_MS)
    timeline = world.timeline
    timeline.call_at(5_000.0, lambda: world.demand.update({("whole", "both"): 3.5, ("split", "decode"): 2.5}))
    timeline.call_at(44_000.0, lambda: world.demand.update({("whole", "both"): 0.7, ("split", "prefill"): 0.3}))
    timeline.call_at(70_500.0, lambda: world.bus.set_available(available=False))
    timeline.call_at(82_000.0, lambda: world.bus.set_available(available=True))
    timeline.call_at(84_000.0, lambda: next(iter(world.workers.values())).kill())
    timeline.call_at(91_000.0, agent.stop)
    timeline.run_until(ENDS_MS)
    return journal.kept


def main() -> None:
    """Replace the recorded segments."""
    for old in JOURNAL.glob("*.jsonl"):
        old.unlink()
    JOURNAL.mkdir(exist_ok=True)
    for number, segment in enumerate(scripted()):
        path = JOURNAL / f"20240101T000000.000Z-{number:06}.jsonl"
        checksums = ChecksumChain()
        path.write_bytes(b"".join(part for record in segment for part in checksums.seal(record)))


if __name__ == "__main__":
    main()
