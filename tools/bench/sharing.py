"""Processor time of the busiest agent for each sample of a fleet: one agent, a leader with a standby, shared models.

python tools/bench/sharing.py [--quick]
"""

import asyncio
import json
import statistics
from contextlib import ExitStack

from loadline.rig.bench import BenchFleet, ProbedProcess, RawPublisher, options, progress, rig
from loadline.rig.rig import Rig

WORKERS, MODELS, SHARDS = 2_000, 40, 32
NAMESPACE = "bench"
SETTLE_S = 8.0
"""Time in which agents that have started divide the shards: a handover follows 5 s after the last one joined."""


def agent(servers: Rig, fleet: BenchFleet, name: str, shards: int) -> ProbedProcess:
    """Start one of several agents of a namespace."""
    sections: dict[str, dict[str, object]] = {
        "http": {"port": 0},
        "agent": {"namespace": NAMESPACE, "name": name},
        "sharing": {"shards": shards},
    }
    path = servers.directory / f"{name}.toml"
    path.write_text(servers.config(fleet.toml(), name, **sections), encoding="utf-8")
    return ProbedProcess(["agent", str(path)], servers.directory / f"{name}.log")


def busiest_us(agents: int, shards: int, seconds: float) -> float:
    """Return the processor time in us that the busiest agent takes for each sample that the fleet publishes."""
    fleet = BenchFleet(MODELS, WORKERS)
    with rig() as servers, RawPublisher(servers.nats.port) as wire, ExitStack() as stack:
        asyncio.run(servers.register(fleet.records, NAMESPACE))
        children = [stack.enter_context(agent(servers, fleet, f"agent-{n}", shards)) for n in range(agents)]
        children[0].wait(lambda sample: sample.ready or shards == 1)
        wire.play(fleet.report_bursts(SETTLE_S))
        heard = [child.sample().workers for child in children]
        if shards > 1 and not (all(heard) and sum(heard) == WORKERS):
            raise RuntimeError(f"of {WORKERS} workers, the agents receive the reports of {heard}")
        before = [child.sample().cpu_s for child in children]
        wire.play(fleet.report_bursts(seconds))
        spent = [child.sample().cpu_s - began for child, began in zip(children, before, strict=True)]
        heard = [child.sample().workers for child in children]
        progress(f"{agents} agents, {shards} shards: workers {heard}, processor seconds {[round(s, 2) for s in spent]}")
    return max(spent) / (WORKERS * seconds) * 1e6


def main() -> None:
    """Run the benchmark and print its results."""
    quick = options(__doc__)
    rounds, seconds = (1, 20.0) if quick else (5, 60.0)
    cases = {"one agent": (1, 1), "leader and standby": (2, 1), "two agents, shared": (2, SHARDS)}
    found: dict[str, list[float]] = {case: [] for case in cases}
    for number in range(1, rounds + 1):
        for case, (agents, shards) in cases.items():
            found[case].append(busiest_us(agents, shards, seconds))
        progress(f"round {number}/{rounds}: " + ", ".join(f"{case} {us[-1]:.1f} us" for case, us in found.items()))
    medians = {case: round(statistics.median(us), 1) for case, us in found.items()}
    ratio = statistics.median(a / b for a, b in zip(found["one agent"], found["two agents, shared"], strict=True))
    print(json.dumps({"us_per_sample": medians, "one_to_shared": round(ratio, 2)}))


if __name__ == "__main__":
    main()
