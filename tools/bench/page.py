"""Turns of an agent with 1,000 workers that report once a second, with 20 open live pages and with none.

Both are measured in turn on the same agent, in many short rounds whose order alternates, since other programs of the
machine change the durations of turns too, and their processor times less. The clients read in threads of this process.
``MB`` is what the pages read in the last round.

  python -m tools.bench.page [--quick]
"""

import asyncio
import socket
import threading
from contextlib import ExitStack
from typing import Final

from loadline.rig.server_processes import free_port
from tools.bench.harness import (
    BenchFleet,
    ProbedProcess,
    RawPublisher,
    options,
    percentile,
    progress,
    result,
    rig,
    warm,
)

WORKERS: Final = 1_000
PAGES: Final = 20
SETTLE_S: Final = 1.0
"""Time after pages opened or closed that does not count."""


class Pages:
    """Open pages, which read all that they are sent."""

    def __init__(self, port: int, count: int) -> None:
        self.read_bytes = 0
        self._sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
        for one in self._sockets:
            one.sendall(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self._threads = [threading.Thread(target=self._read, args=(one,)) for one in self._sockets]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Close all pages."""
        for one in self._sockets:
            one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()

    def _read(self, page: socket.socket) -> None:
        while data := page.recv(1 << 18):
            self.read_bytes += len(data)


def turns_p99_ms(fleet: BenchFleet, wire: RawPublisher, child: ProbedProcess, seconds: float) -> tuple[float, float]:
    """Return the p99 of the turns while all workers report for some time: their duration and their processor time."""
    child.sample()
    child.turns.clear()
    child.turns_cpu_s.clear()
    wire.play(fleet.report_bursts(seconds))
    child.sample()
    durations_s = [took_s for _, took_s in child.turns]
    return percentile(durations_s, 0.99) * 1e3, percentile(child.turns_cpu_s, 0.99) * 1e3


def main() -> None:
    """Run the benchmark and print its results."""
    quick = options(__doc__)
    rounds, seconds = (4, 4.0) if quick else (30, 4.0)
    fleet, port = BenchFleet(1, WORKERS), free_port()
    without: list[tuple[float, float]] = []
    with_pages: list[tuple[float, float]] = []
    read_mb = 0.0
    with ExitStack() as stack:
        servers = stack.enter_context(rig())
        wire = stack.enter_context(RawPublisher(servers.nats.port))
        asyncio.run(servers.register(fleet.records, "agent"))
        path = servers.directory / "agent.toml"
        sections: dict[str, dict[str, object]] = {"http": {"port": port}, "agent": {"namespace": "agent"}}
        path.write_text(servers.config(fleet.toml(), "agent", **sections), encoding="utf-8")
        child = stack.enter_context(ProbedProcess(["agent", str(path)], servers.directory / "agent.log"))
        warm(fleet, wire, child)
        for number in range(1, rounds + 1):
            for is_open in (False, True) if number % 2 else (True, False):
                pages = Pages(port, PAGES if is_open else 0)
                turns_p99_ms(fleet, wire, child, SETTLE_S)
                found = with_pages if is_open else without
                found.append(turns_p99_ms(fleet, wire, child, seconds))
                pages.close()
                read_mb = pages.read_bytes / 1e6 if is_open else read_mb
            progress(f"round {number}/{rounds}: p99 {_text(without[-1])}, with pages {_text(with_pages[-1])}")
    for name, index in (("page_turn_p99", 0), ("page_turn_cpu_p99", 1)):
        result(name, "ms", [one[index] for one in with_pages], [one[index] for one in without], MB=round(read_mb, 1))


def _text(p99_ms: tuple[float, float]) -> str:
    return f"{p99_ms[0]:.2f} ms, {p99_ms[1]:.2f} ms of processor time"


if __name__ == "__main__":
    main()
