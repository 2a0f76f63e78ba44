"""Reaction time while a viewer floods the agent with queries: the 99th percentile over all crossings.

As in ``reaction``, 250 models cross their thresholds one after the other. Meanwhile a viewer sends a burst of 20,000
``api.status`` requests (1 MB) each second, and reads what is answered. The baseline is the same round without a viewer.

  python -m tools.bench.query_burst [--quick]
"""

import asyncio
import socket
import statistics
import time

from loadline.rig.bench import BenchFleet, RawPublisher, agent, options, percentile, progress, result, rig, subscriber
from loadline.rig.rig import Rig
from tools.bench.reaction import APART_S, FIRST_S, MODELS, STEADY_RATIO, WORKERS, format_times, react

REQUESTS = 20_000
BURSTS = round(MODELS * APART_S)
INBOX = b"_INBOX.viewer.x"


class Viewer:
    """Connection that sends bursts of requests and reads the replies.

    Args:
        port: Port of the NATS server.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB %b 1\r\n' % INBOX)
        self.answered_bytes = 0

    def flood(self) -> None:
        """Send a burst each second while the models cross their thresholds."""
        frames = b"PUB loadline.v1.api.status %b 0\r\n\r\n" % INBOX * REQUESTS
        began_s = time.monotonic() + FIRST_S
        for number in range(BURSTS):
            time.sleep(max(0.0, began_s + number - time.monotonic()))
            self._socket.sendall(frames)

    def read(self) -> None:
        """Count the bytes of all replies until the connection is closed."""
        while received := self._socket.recv(1 << 20):
            self.answered_bytes += len(received)

    def close(self) -> None:
        """End the connection, and with it ``read``."""
        self._socket.shutdown(socket.SHUT_RDWR)


async def react_under_queries(made: Rig, fleet: BenchFleet, wire: RawPublisher) -> tuple[list[float], int]:
    """Return all reactions in ms while a viewer floods the agent, and the bytes of the replies to the viewer."""
    viewer = Viewer(made.nats.port)
    reader = asyncio.create_task(asyncio.to_thread(viewer.read))
    (reactions, _), _ = await asyncio.gather(react(made, fleet, wire), asyncio.to_thread(viewer.flood))
    viewer.close()
    await reader
    return reactions, viewer.answered_bytes


def one_round(*, queries: bool) -> tuple[list[float], int]:
    """Return the reactions of one round in ms, and the bytes of the replies to the viewer."""
    fleet = BenchFleet(MODELS, WORKERS, STEADY_RATIO)
    with rig(fsync=True) as made, RawPublisher(made.nats.port) as wire:
        asyncio.run(made.register(fleet.records, "agent"))
        with agent(made, fleet) as child, subscriber(made) as echo:
            child.wait(lambda sample: sample.ready)
            echo.wait(lambda sample: sample.ready)
            if queries:
                return asyncio.run(react_under_queries(made, fleet, wire))
            return asyncio.run(react(made, fleet, wire))[0], 0


def main() -> None:
    """Run the benchmark and print its results."""
    rounds = 1 if options(__doc__) else 3
    flooded: list[list[float]] = []
    quiet: list[list[float]] = []
    replies_mb: list[float] = []
    for number in range(1, rounds + 1):
        quiet.append(one_round(queries=False)[0])
        reactions, answered_bytes = one_round(queries=True)
        flooded.append(reactions)
        replies_mb.append(answered_bytes / 1e6)
        progress(f"round {number}/{rounds}: {format_times(flooded[-1])}; without queries {format_times(quiet[-1])}")
    p99s, bare_p99s = ([percentile(times, 0.99) for times in runs] for runs in (flooded, quiet))
    medians = [statistics.median(percentile(times, 0.5) for times in runs) for runs in (flooded, quiet)]
    p50, bare_p50 = (round(median, 3) for median in medians)
    result("query_burst_p99", "ms", p99s, bare_p99s, p50=p50, baseline_p50=bare_p50, replies_mb=round(min(replies_mb)))


if __name__ == "__main__":
    main()
