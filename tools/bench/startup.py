"""Time from the start of `loadline run` until /readyz returns 200; the baseline is the import of its libraries.

python -m tools.bench.startup [--quick]
"""

import asyncio
import subprocess
import sys
import time

from tools.bench.harness import BenchFleet, options, progress, result, rig

IMPORTS = "import nats, aiohttp, etcd3, msgspec"
WORKERS, MODELS = 100, 4


def main() -> None:
    """Run the benchmark and print its results."""
    rounds = 5 if options(__doc__) else 11
    fleet = BenchFleet(MODELS, WORKERS)
    measured: list[float] = []
    baseline: list[float] = []
    with rig() as servers:
        asyncio.run(servers.register(fleet.records))
        for number in range(1, rounds + 1):
            began_s = time.monotonic()
            subprocess.run([sys.executable, "-c", IMPORTS], check=True)  # noqa: S603 - our own text
            baseline.append(time.monotonic() - began_s)
            began_s = time.monotonic()
            agent = servers.agent(servers.config(fleet.toml(), f"agent-{number}"), f"agent-{number}")
            agent.wait_ready()
            measured.append(time.monotonic() - began_s)
            agent.stop()
            progress(f"round {number}/{rounds}: {measured[-1]:.3f} s, imports alone {baseline[-1]:.3f} s")
    result("startup", "s", measured, baseline)


if __name__ == "__main__":
    main()
