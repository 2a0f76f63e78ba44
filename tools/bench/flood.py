"""Reaction time while one client floods the agent: the 99th percentile over all crossings.

As in ``reaction``, 250 models cross their thresholds one after the other. Meanwhile a client sends a burst of 20,000
messages each second: ``api.status`` requests of a viewer, which reads what is answered, or reports of one registered
worker. The baseline is the same round without that client. All files are in memory: a disk that is shared with others
stalls for 60 to 300 ms, which would decide the 99th percentiles, and no client causes it.

  python -m tools.bench.flood [--quick]
"""

import asyncio
import socket
import statistics
import time

from tools.bench.harness import format_times, options, percentile, progress, result
from tools.bench.reaction import FIRST_S, MODELS, PER_SECOND, WORKERS, react, reporting_fleet

MESSAGES = 20_000
BURSTS = MODELS // PER_SECOND
INBOX = b"_INBOX.viewer.x"
QUERY = b"PUB loadline.v1.api.status %b 0\r\n\r\n" % INBOX


class FloodingClient:
    """Connection that sends bursts and reads the replies.

    Args:
        port: Port of the NATS server.
        message: What it sends: one frame of the NATS protocol.
    """

    def __init__(self, port: int, message: bytes) -> None:
        self._burst = message * MESSAGES
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB %b 1\r\n' % INBOX)

    def send(self) -> None:
        """Send a burst each second while the models cross their thresholds."""
        began_s = time.monotonic() + FIRST_S
        for number in range(BURSTS):
            time.sleep(max(0.0, began_s + number - time.monotonic()))
            self._socket.sendall(self._burst)

    def read(self) -> int:
        """Return the size in bytes of all replies, once the connection is closed."""
        received_bytes = 0
        while received := self._socket.recv(1 << 20):
            received_bytes += len(received)
        return received_bytes

    def close(self) -> None:
        """End the connection, and with it ``read``."""
        self._socket.shutdown(socket.SHUT_RDWR)


def one_round(kind: str) -> tuple[list[float], int]:
    """Return the reactions of one round in ms, and the size in bytes of the replies to the client; "": no client."""
    with reporting_fleet(in_memory=True) as (servers, fleet, wire):

        async def run() -> tuple[list[float], int]:
            if not kind:
                return (await react(servers, fleet, wire))[0], 0
            client = FloodingClient(servers.nats.port, QUERY if kind == "queries" else fleet.frame(WORKERS - 1))
            reader = asyncio.create_task(asyncio.to_thread(client.read))
            (reactions, _), _ = await asyncio.gather(react(servers, fleet, wire), asyncio.to_thread(client.send))
            client.close()
            return reactions, await reader

        return asyncio.run(run())


def main() -> None:
    """Run the benchmark and print its results."""
    rounds = 1 if options(__doc__) else 3
    kinds = ("", "queries", "reports")
    found: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
    replies: dict[str, list[int]] = {kind: [] for kind in kinds}
    for number in range(1, rounds + 1):
        for kind in kinds:
            reactions, replies_bytes = one_round(kind)
            found[kind].append(reactions)
            replies[kind].append(replies_bytes)
            progress(f"round {number}/{rounds}, {kind or 'no flood'}: {format_times(reactions)}")
    p99s = {kind: [percentile(times, 0.99) for times in runs] for kind, runs in found.items()}
    p50s = {kind: statistics.median(percentile(times, 0.5) for times in runs) for kind, runs in found.items()}
    for kind in kinds[1:]:
        more = {"p50": round(p50s[kind], 3), "baseline_p50": round(p50s[""], 3)}
        result(f"flood_{kind}_p99", "ms", p99s[kind], p99s[""], replies_mb=round(min(replies[kind]) / 1e6), **more)


if __name__ == "__main__":
    main()
