"""Time from the start of `loadline run` until /readyz returns 200; the baseline is the import of its libraries.

python tools/bench/startup.py [--quick]
"""

import asyncio
import subprocess
import sys
import time

from loadline.rig.bench import BenchFleet, options, progress, result, rig

IMPORTS = "import nats, aiohttp, etcd3, msgspec"
WORKERS, MODELS = 100, 4


def main() -> None:
    """Run the benchmark and print its results."""
    rounds = 5 if options(__doc__) else 11
    fleet = BenchFleet(MODELS, WORKERS)
    ours: list[float] = []
    bare: list[float] = []
    with rig() as servers:
        asyncio.run(servers.register(fleet.records))
        for number in range(1, rounds + 1):
            began_s = time.monotonic()
            subprocess.run([sys.executable, "-c", IMPORTS], check=True)  # noqa: S603 - our own text
            bare.append(time.monotonic() - began_s)
            began_s = time.monotonic()
            agent = servers.agent(servers.config(fleet.toml(), f"agent-{number}"), f"agent-{number}")
            agent.wait_ready()
            ours.append(time.monotonic() - began_s)
            agent.stop()
            progress(f"round {number}/{rounds}: {ours[-1]:.3f} s, imports alone {bare[-1]:.3f} s")
    result("startup", "s", ours, bare)


if __name__ == "__main__":
    main()
