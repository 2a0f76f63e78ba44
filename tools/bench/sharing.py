"""What sharing saves: the processor time of the busiest agent for each sample of a fleet, and what each agent decodes.

One agent, a leader with a standby, and two agents that share the models take the same reports. The capacity of a fleet
of agents, each on cores of its own, is the inverse of the busiest one's time. That two agents reach it together is not
measured: it needs more cores than the two agents, the servers and the publisher have here. With shared models, each
report must be decoded by exactly one agent.

  python -m tools.bench.sharing [--quick]
"""

import asyncio
import json
import statistics
import time
from contextlib import ExitStack

from loadline.rig.rig import Rig
from tools.bench.harness import BenchFleet, ProbedProcess, RawPublisher, options, progress, rig

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
        time.sleep(1.0)  # until all reports so far are decoded
        before = [child.sample() for child in children]
        wire.play(fleet.report_bursts(seconds))
        published = round(WORKERS * seconds)
        time.sleep(1.0)  # for the last reports; a missing one is an error below
        after = [child.sample() for child in children]
        spent = [end.cpu_s - began.cpu_s for end, began in zip(after, before, strict=True)]
        decoded = [end.frames - began.frames for end, began in zip(after, before, strict=True)]
    each = [round(cpu_s / frames * 1e6, 1) for cpu_s, frames in zip(spent, decoded, strict=True)]
    progress(
        f"{agents} agents, {shards} shards: of {published} samples {decoded} decoded, at {each} us of processor time"
    )
    if shards > 1 and sum(decoded) != published:
        raise RuntimeError(f"agents that share {published} reports decoded {decoded}")
    return max(spent) / published * 1e6


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
