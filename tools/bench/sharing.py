"""What sharing saves: the processor time of the busiest agent for each sample of a fleet, and what each agent decodes.

One agent, a leader with a standby, and two agents that share the models take the same reports: 2,000 a second, at which
most of the time is that of turns, and bursts as fast as the server takes them, as in ``tools.bench.ingest``. The
capacity of a fleet of agents, each on cores of its own, is the inverse of the busiest one's time. That two agents reach
it together is not measured: it needs more cores than the two agents, the servers and the publisher have here. With
shared models, each report must be decoded by exactly one agent.

  python -m tools.bench.sharing [--quick]
"""

import asyncio
import json
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack

from msgspec import Struct

from loadline.rig.rig import Rig
from tools.bench.harness import PATIENCE_S, POLL_S, BenchFleet, ProbedProcess, RawPublisher, options, progress, rig
from tools.bench.probe import ProbeSample

WORKERS, MODELS, SHARDS = 2_000, 40, 32
NAMESPACE = "bench"
BURST = 60_000
"""Reports: 22 MB."""
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


class BusiestAgent(Struct, frozen=True):
    """Processor time of the busiest agent for each sample that a fleet publishes, in us."""

    steady_us: float
    """At 2,000 samples a second."""
    bursts_us: float
    """In bursts as fast as the server takes them."""


def measure(agents: int, shards: int, seconds: float, bursts: int) -> BusiestAgent:
    """Publish to agents that share the models if there are several shards."""
    fleet = BenchFleet(MODELS, WORKERS)
    with rig() as servers, RawPublisher(servers.nats.port) as wire, ExitStack() as stack:
        asyncio.run(servers.register(fleet.records, NAMESPACE))
        children = [stack.enter_context(agent(servers, fleet, f"agent-{n}", shards)) for n in range(agents)]
        children[0].wait(lambda sample: sample.ready or shards == 1)
        wire.play(fleet.report_bursts(SETTLE_S))
        heard = [child.sample().workers for child in children]
        if shards > 1 and not (all(heard) and sum(heard) == WORKERS):
            raise RuntimeError(f"of {WORKERS} workers, the agents receive the reports of {heard}")

        _wait_until_read(children)
        rate = fleet.report_bursts(seconds)
        steady_us = _busiest_us(children, lambda: wire.play(rate), round(WORKERS * seconds), shards)
        times = [_busiest_us(children, lambda: wire.send(fleet.burst(BURST)), BURST, shards) for _ in range(bursts)]
        return BusiestAgent(steady_us, statistics.median(times))


def _busiest_us(children: list[ProbedProcess], publish: Callable[[], None], samples: int, shards: int) -> float:
    expected = samples * (1 if shards > 1 else len(children))
    before = [child.sample() for child in children]
    publish()
    deadline_s = time.monotonic() + PATIENCE_S
    after = before
    while _frames(after) - _frames(before) < expected and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
        after = [child.sample() for child in children]
    spent = [end.cpu_s - began.cpu_s for end, began in zip(after, before, strict=True)]
    decoded = [end.frames - began.frames for end, began in zip(after, before, strict=True)]
    each = [round(cpu_s / frames * 1e6, 2) for cpu_s, frames in zip(spent, decoded, strict=True)]
    progress(f"{len(children)} agents, {shards} shards: of {samples} samples {decoded} decoded, at {each} us each")
    if sum(decoded) != expected:
        raise RuntimeError(f"of {samples} reports, the agents decoded {decoded}")
    return max(spent) / samples * 1e6


def _wait_until_read(children: list[ProbedProcess]) -> None:
    """Wait until no agent has decoded anything for a second."""
    seen = -1
    while seen != (frames := _frames([child.sample() for child in children])):
        seen = frames
        time.sleep(1.0)


def _frames(samples: list[ProbeSample]) -> int:
    return sum(sample.frames for sample in samples)


def main() -> None:
    """Run the benchmark and print its results."""
    quick = options(__doc__)
    rounds, seconds, bursts = (1, 20.0, 4) if quick else (5, 60.0, 10)
    cases = {"one agent": (1, 1), "leader and standby": (2, 1), "two agents, shared": (2, SHARDS)}
    found: dict[str, list[BusiestAgent]] = {case: [] for case in cases}
    for number in range(1, rounds + 1):
        for case, (agents, shards) in cases.items():
            found[case].append(measure(agents, shards, seconds, bursts))
        progress(f"round {number}/{rounds} done")
    for load in BusiestAgent.__struct_fields__:
        times = {case: [getattr(one, load) for one in measured] for case, measured in found.items()}
        ratios = [a / b for a, b in zip(times["one agent"], times["two agents, shared"], strict=True)]
        line = {
            load: {case: round(statistics.median(us), 2) for case, us in times.items()},
            "one_to_shared": round(statistics.median(ratios), 2),
            "spread": [round(min(ratios), 2), round(max(ratios), 2)],
        }
        print(json.dumps(line))


if __name__ == "__main__":
    main()
