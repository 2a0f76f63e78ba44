"""Hours of faults around one agent that no fault ends: does its memory grow, does it keep files open?

python -m tools.process_chaos.soak --for 7200

Each 30 s has a fault on the servers, on the two other agents or on the fleet, as in tools.process_chaos. Beside the
load, a client follows the live page of the steady agent all the time, its configuration changes once a minute, and the
journals of all agents are replayed.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from statistics import fmean, linear_regression
from typing import Final

import aiohttp
from msgspec import Struct
from msgspec.structs import replace

from loadline.cli.exit_codes import INTERRUPTED
from loadline.demo.setup import FIRST_AGENT
from tools.process_chaos.fleet import JOURNAL_BYTES_MAX, ChaosFleet
from tools.process_chaos.journal_checks import JournalChecks
from tools.process_chaos.plan import draw
from tools.process_chaos.run import run, run_until_signalled

_FAULT_EVERY_S: Final = 30.0
_FAULT_LASTS_S: Final = 4.0
"""Mean time that a fault lasts, over all kinds."""
_SAMPLE_S: Final = 5.0
_RELOAD_S: Final = 60.0
_SHOWN_S: Final = 600.0
"""Time between two memories of the report, by which growth that ends is told from growth that does not."""
_WARM_UP: Final = 0.25
"""Fraction of the run, at most 10 min, that the slope leaves out: caches and windows fill."""
_WARM_UP_S: Final = 600.0
_ENDS: Final = 0.1
"""Fraction of the settled samples, at the beginning and at the end, in which files that stay open are counted."""
_GROWTH_MIB_PER_H_MAX: Final = 1.0
_MIB: Final = 2**20


class Sample(Struct, frozen=True):
    """The steady agent at one time."""

    at_s: float
    rss_mib: float
    descriptors: int
    journal_mib: float


class Soak:
    """Watch over the steady agent, and over the journals of all."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.page_events = 0
        """Events that the live page has sent."""
        self._journals = JournalChecks()
        self._pids: set[int] = set()
        self._began_s = time.monotonic()

    async def watch(self, fleet: ChaosFleet) -> None:
        """Sample, follow the live page, change configurations and replay journals until cancelled."""
        async with asyncio.TaskGroup() as group:
            for task in (self._sample(fleet), self._follow_page(fleet), _reload(fleet), self._journals.run(fleet)):
                group.create_task(task)

    @property
    def settled(self) -> list[Sample]:
        """Samples after the warm-up."""
        last_s = self.samples[-1].at_s
        return [one for one in self.samples if one.at_s >= min(_WARM_UP_S, _WARM_UP * last_s)]

    @property
    def growth_mib_per_h(self) -> float:
        """Slope of the resident memory, by linear regression."""
        settled = self.settled
        return 3_600.0 * linear_regression([one.at_s for one in settled], [one.rss_mib for one in settled]).slope

    def problems(self) -> list[str]:
        """Return what grows without a bound, and what is wrong with the journals."""
        settled, found = self.settled, list(self._journals.problems)
        if self.growth_mib_per_h > _GROWTH_MIB_PER_H_MAX:
            found.append(f"memory grows by {self.growth_mib_per_h:.2f} MiB/h")
        count = max(1, int(_ENDS * len(settled)))
        # The lowest counts: connections and children that replace others after a fault overlap with them for a while.
        before, after = (min(one.descriptors for one in part) for part in (settled[:count], settled[-count:]))
        if after > before:
            found.append(f"at least {before} files are open at the beginning, and {after} at the end")
        if max(one.journal_mib for one in self.samples) * _MIB > JOURNAL_BYTES_MAX:
            found.append("the journal exceeds its limit")
        if len(self._pids) > 1:
            found.append("the steady agent has ended")
        if not self.page_events:
            found.append("the live page has sent nothing")
        return found

    def report(self) -> str:
        """Return the figures as a sentence."""
        settled = self.settled
        rss, files = [one.rss_mib for one in settled], [one.descriptors for one in settled]
        return (
            f"from minute {settled[0].at_s / 60:.0f} to {settled[-1].at_s / 60:.0f}:"
            f" memory {min(rss):.1f} to {max(rss):.1f} MiB, {self.growth_mib_per_h:+.2f} MiB/h"
            f" ({', '.join(self._means())});"
            f" {min(files)} to {max(files)} open files;"
            f" journal at most {max(one.journal_mib for one in self.samples):.1f} MiB;"
            f" {self._journals.segments} segments replayed;"
            f" {self.page_events} events of the live page"
        )

    def _means(self) -> Iterator[str]:
        """Yield the mean memory of each 10 min."""
        for number, group in groupby(self.settled, lambda one: one.at_s // _SHOWN_S):
            yield f"{(number + 1) * _SHOWN_S / 60:.0f} min: {fmean(one.rss_mib for one in group):.1f}"

    async def _sample(self, fleet: ChaosFleet) -> None:
        while True:
            await asyncio.sleep(_SAMPLE_S)
            if fleet.steady is not None and fleet.steady.pid:
                self._pids.add(fleet.steady.pid)
                self.samples.append(_measure(fleet, fleet.steady.pid, time.monotonic() - self._began_s))

    async def _follow_page(self, fleet: ChaosFleet) -> None:
        url = f"http://127.0.0.1:{fleet.setup.http_port}/api/events"
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
            while True:
                with suppress(aiohttp.ClientError):
                    async with session.get(url) as response:
                        async for line in response.content:
                            self.page_events += line.startswith(b"data:")
                await asyncio.sleep(1.0)


async def _reload(fleet: ChaosFleet) -> None:
    version = 0
    while True:
        await asyncio.sleep(_RELOAD_S)
        version += 1
        fleet.configure(FIRST_AGENT, version % 2)


def _measure(fleet: ChaosFleet, pid: int, at_s: float) -> Sample:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    rss_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    journal = fleet.directory / "journal" / FIRST_AGENT
    journal_bytes = 0
    for segment in journal.glob("*.jsonl"):
        with suppress(FileNotFoundError):  # the oldest is deleted meanwhile
            journal_bytes += segment.stat().st_size
    return Sample(at_s, rss_kib / 1_024, len(list(Path(f"/proc/{pid}/fd").iterdir())), journal_bytes / _MIB)


def main() -> int:
    """Run it; return 1 on a violation."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.process_chaos.soak", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--for", dest="for_s", type=float, default=7_200.0, metavar="S", help="seconds (default: 7200)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults (default: 0)")
    parser.add_argument("--directory", type=Path, help="folder for the files (default: a temporary one)")
    options = parser.parse_args()
    directory = options.directory or Path(tempfile.mkdtemp(prefix="soak-"))
    soak = Soak()
    plan = replace(draw(options.seed, options.for_s, _FAULT_EVERY_S - _FAULT_LASTS_S), has_steady_agent=True)
    try:
        outcome = run_until_signalled(run(plan, directory, _print, watch=soak.watch))
    except KeyboardInterrupt:
        _print(f"interrupted; all processes have ended, and their files are in {directory}")
        return INTERRUPTED
    print(f"{outcome.summary} in {directory}")
    print(soak.report())
    violations = outcome.violations + soak.problems()
    for violation in violations:
        print(f"VIOLATION: {violation}")
    return 1 if violations else 0


def _print(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
