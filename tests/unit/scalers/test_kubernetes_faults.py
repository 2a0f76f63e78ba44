"""Kubernetes scaler among faults of its API server: two of them, killed at any time, beside somebody who scales too."""

import asyncio
import random
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec
import pytest

from loadline.client.resources import running
from loadline.client.scaler import ScalerClient
from loadline.core.vocabulary.decisions import PoolTarget, Victim
from loadline.scalers.driver import ReplicaScaler
from loadline.scalers.kubernetes.config import KubernetesKnobs, KubernetesModelKnobs
from loadline.scalers.kubernetes.platform import connect
from loadline.scalers.kubernetes.pods import DELETION_COST
from loadline.wire.codec import encode
from loadline.wire.messages import DecisionApplied, DrainReport
from loadline.wire.subjects import Subjects
from tests.support.decisions import decision
from tests.support.kubernetes_double import KubernetesDouble, kubernetes_double
from tests.support.memory import MemoryBus
from tests.unit.scalers.test_kubernetes_platform import DEPLOYMENT, deployment, pod, replicas

SUBJECTS = Subjects("loadline")
MODEL, POOL = "llama", "decode"
STEP_S = 0.02
READY_STEPS = 25  # a pod that is not ready may go, and one has just become ready when it does
FORBIDDEN = (("patch", "deployments/scale"), ("list", "pods"), ("patch", "pods"), ("get", "deployments"))


class Cluster:
    """ReplicaSet controller, kubelet and agent: pods by the count, and decisions with the victims they can have."""

    def __init__(self, server: KubernetesDouble, bus: MemoryBus, seed: int) -> None:
        self.server, self.bus, self.random = server, bus, random.Random(seed)
        self.drained: set[str] = set()
        self.incarnations: dict[str, int] = {}
        self.lost: list[str] = []
        self._ready_steps: dict[str, int] = {}
        self.sequence = self.started = 0
        self.target = 3
        deployment(server, self.target, ready=0)

    def pods(self) -> dict[str, bool]:
        """Return the names of pods, each with its readiness."""
        found = {key[2]: content for key, content in sorted(self.server.objects.items()) if key[0] == "pods"}
        return {name: each["status"]["conditions"][0]["status"] == "True" for name, each in found.items()}

    def control(self) -> None:
        """Let pods become ready, and start or remove some: by readiness, by cost, and the last to become ready."""
        wanted = replicas(self.server)
        for name in [name for name, ready in self.pods().items() if not ready and self.random.random() < 0.2]:
            pod(self.server, name, metadata={"annotations": self._annotations(name)})  # a scaler may have set its cost
        pods = self.pods()
        self._ready_steps = {name: self._ready_steps.get(name, 0) + 1 for name, ready in pods.items() if ready}
        costs = {name: self._cost(name) for name in pods}
        steps = self._ready_steps
        order = sorted(pods, key=lambda name: (pods[name], costs[name], steps.get(name, 0), self.random.random()))
        for name in order[: max(0, len(pods) - wanted)]:
            if self._ready_steps.get(name, 0) > READY_STEPS and name not in self.drained:
                self.lost.append(name)
            self.server.delete("pods", name)
        for _ in range(wanted - len(pods)):
            self.started += 1
            pod(self.server, f"pod-{self.started:03}", ready=False)
        ready = sum(self.pods().values())
        if ready != self._reported_ready():  # also after a fault that wrote another number
            deployment(self.server, wanted, ready=ready)

    def _reported_ready(self) -> int:
        count: int = self.server.objects["deployments", "default", "llama"]["status"]["readyReplicas"]
        return count

    def _cost(self, name: str) -> int:
        return int(self._annotations(name).get(DELETION_COST, 0))

    def _annotations(self, name: str) -> dict[str, str]:
        annotations: dict[str, str] = self.server.objects["pods", "default", name]["metadata"].get("annotations", {})
        return annotations

    def decide(self, target: int) -> None:
        """Announce a decision for a count, and drain its victims."""
        self.target, self.sequence = target, self.sequence + 1
        serving = [name for name, ready in self.pods().items() if ready and name not in self.drained]
        victims = tuple(
            Victim(name, self.incarnations.get(name, 1)) for name in serving[: max(0, len(serving) - target)]
        )
        wanted = PoolTarget(POOL, "decode", target, len(serving), victims, victim_rule="named")
        message = decision(1, self.sequence, wanted, drain_ttl_ms=600_000)
        self.message = encode(msgspec.structs.replace(message, model=MODEL))

    def report(self) -> None:
        """Announce the decision again, and drain one of its victims."""
        self.bus.publish_now(SUBJECTS.decision(MODEL), self.message)
        current = msgspec.json.decode(self.message)
        named = [victim["worker"] for victim in current["targets"][0].get("victims", [])]
        self.drained.update([name for name in named if name not in self.drained][:1])
        for name in self.drained & set(self.pods()):
            report = DrainReport(MODEL, POOL, name, self.incarnations.get(name, 1))
            self.bus.publish_now(SUBJECTS.drained(MODEL, POOL, name), encode(report))

    def bring_back(self) -> None:
        """Start drained workers again whose pods were kept, as the kubelet does."""
        for name in self.drained & set(self.pods()):
            self.drained.discard(name)
            self.incarnations[name] = self.incarnations.get(name, 1) + 1

    def done(self) -> bool:
        """Return True if the newest decision is reported as done."""
        answers = [payload for subject, payload in self.bus.published if subject == SUBJECTS.applied(MODEL)]
        decoded = [msgspec.json.decode(payload, type=DecisionApplied) for payload in answers[-20:]]
        return any(answer.status == "done" and answer.sequence == self.sequence for answer in decoded)

    async def fault(self) -> None:
        """Inject one fault."""
        match self.random.randrange(7):
            case 0:
                statuses = self.random.choices([409, 429, 500, 503], k=3)
                self.server.failures = [(status, {"Retry-After": "0"}) for status in statuses]
            case 1:
                self.server.forbidden = {self.random.choice(FORBIDDEN)}
            case 2:
                self.server.forbidden = set()
            case 3:
                self.server.close_watches()
                self.server.compact()
            case 4:
                await self.server.stop()
                await self.server.start()
            case 5:  # somebody scales up
                deployment(self.server, replicas(self.server) + 1, ready=sum(self.pods().values()))
            case 6:  # a change that is no change of the count
                deployment(self.server, replicas(self.server), ready=0)


class Scaler:
    """Scaler that may be killed and started again."""

    def __init__(self, knobs: KubernetesKnobs, bus: MemoryBus) -> None:
        self._knobs, self._bus = knobs, bus
        self._task: asyncio.Task[None] | None = None

    async def restart(self) -> None:
        await self.kill()
        self._task = asyncio.create_task(self._run())

    async def kill(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        async with connect(self._knobs) as platform, ScalerClient("s", [MODEL], bus=self._bus) as client:
            await ReplicaScaler(platform, client).run(asyncio.Event())


async def controlled(cluster: Cluster) -> None:
    while True:
        cluster.control()
        await asyncio.sleep(STEP_S)


@pytest.mark.parametrize("seed", range(2))
def test_no_serving_pod_is_removed_and_the_count_converges(tmp_path: Path, seed: int) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(kubernetes_double())
            kubeconfig = str(server.kubeconfig(tmp_path))
            knobs = KubernetesKnobs(models=(KubernetesModelKnobs(MODEL, (DEPLOYMENT,)),), kubeconfig=kubeconfig)
            bus = MemoryBus()
            cluster = Cluster(server, bus, seed)
            await stack.enter_async_context(running(controlled(cluster), "controller"))
            scalers = [Scaler(knobs, bus) for _ in range(2)]
            for scaler in scalers:
                stack.push_async_callback(scaler.kill)
                await scaler.restart()
            for _ in range(25):
                cluster.decide(cluster.random.randint(1, 6))
                for _ in range(cluster.random.randint(1, 4)):
                    cluster.report()
                    if cluster.random.random() < 0.4:
                        await cluster.fault()
                    if cluster.random.random() < 0.2:
                        await cluster.random.choice(scalers).restart()
                    await asyncio.sleep(0.05)
            server.failures, server.forbidden = [], set()
            async with asyncio.timeout(60):
                while replicas(server) != 2 or len(cluster.pods()) != 2 or not cluster.done():
                    cluster.decide(2)
                    for _ in range(40):
                        cluster.report()
                        await asyncio.sleep(0.05)
                        if cluster.done():
                            break
                    else:
                        cluster.bring_back()
            assert cluster.lost == []

    asyncio.run(scenario())
