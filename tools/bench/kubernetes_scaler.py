"""Time from a decision on NATS to its PATCH and to the answer, as the Kubernetes scaler sends it.

One decision to grow after another, for a LeaderWorkerSet whose selector selects no pod. The baseline is a PATCH of
another object by the same client, before each decision. The server is the one that LOADLINE_TEST_KUBECONFIG names, else
the double of the tests in this process.

  python -m tools.bench.kubernetes_scaler [--quick]
"""

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from loadline.adapters.kubernetes_api import KubernetesApi, ObjectName
from loadline.adapters.logs import configure
from loadline.adapters.nats_bus import NatsBus
from loadline.client.scaler import ScalerClient
from loadline.config import NatsKnobs
from loadline.core.vocabulary.decisions import PoolTarget
from loadline.rig.server_processes import NatsServer
from loadline.scalers.driver import ReplicaScaler
from loadline.scalers.kubernetes.config import KubernetesKnobs, KubernetesModelKnobs, KubernetesPoolKnobs
from loadline.scalers.kubernetes.platform import KubernetesPlatform
from loadline.wire.codec import encode
from loadline.wire.subjects import Subjects
from tests.support.decisions import decision
from tests.support.kubernetes_double import MERGE
from tests.support.kubernetes_servers import LWS, REAL, api_server, path_of
from tools.bench.harness import options, percentile, result

TARGET_MS = 20.0
PAUSE_S = 0.1  # the observation after a change ends before the next decision
NAME, PLAIN = "bench", "bench-plain"


class TimedApi(KubernetesApi):
    """Client that records when it begins to send each change, and when it has the answer."""

    def __init__(self, kubeconfig: str) -> None:
        super().__init__(kubeconfig)
        self.patches: asyncio.Queue[tuple[float, float]] = asyncio.Queue()

    async def patch(self, *arguments: Any, **options_of_patch: Any) -> None:
        """Record the times, and send."""
        sent_s = time.monotonic()
        await super().patch(*arguments, **options_of_patch)
        self.patches.put_nowait((sent_s, time.monotonic()))


async def measure(decisions: int, directory: Path, nats_url: str) -> tuple[list[float], list[float], list[float]]:
    """Return the times from decisions to changes and to their answers, and the baselines, in ms."""
    sent, answered, baselines = [], [], []
    async with api_server("real" if REAL else "double", directory) as server:
        target: ObjectName = await server.create(LWS, NAME, {"spec": {"replicas": 1}})
        plain = await server.create(LWS, PLAIN, {"spec": {"replicas": 1}})
        pool = KubernetesPoolKnobs(name="decode", kind="LeaderWorkerSet", object=NAME)
        knobs = KubernetesKnobs(models=(KubernetesModelKnobs("m", (pool,)),), namespace="default")
        nats, bus = NatsKnobs(servers=(nats_url,)), NatsBus(NatsKnobs(servers=(nats_url,)), name="bench")
        await bus.connect(lambda _connected: None)
        async with TimedApi(server.kubeconfig) as api, ScalerClient("bench", ["m"], nats=nats) as scaler:
            platform, stop = KubernetesPlatform(api, knobs), asyncio.Event()
            status = {"status": {"hpaPodSelector": "lws=bench"}}
            await server.call("PATCH", f"{path_of(LWS)}/{NAME}/status", status, MERGE)
            running = asyncio.create_task(ReplicaScaler(platform, scaler).run(stop))
            for sequence in range(1, decisions + 1):
                began_s = time.monotonic()
                await super(TimedApi, api).patch(plain, {"spec": {"replicas": sequence}}, scale=True)
                baselines.append((time.monotonic() - began_s) * 1_000)
                message = decision(1, sequence, PoolTarget("decode", "decode", 1 + sequence, 0))
                began_s = time.monotonic()
                await bus.publish(Subjects("loadline").decision("m"), encode(message))
                sent_s, answered_s = await api.patches.get()
                sent.append((sent_s - began_s) * 1_000)
                answered.append((answered_s - began_s) * 1_000)
                await asyncio.sleep(PAUSE_S)
                assert (await api.get(target))["spec"]["replicas"] == 1 + sequence  # noqa: S101 - the change counts
            stop.set()
            await running
            await platform.close()
        await bus.close()
    return sent, answered, baselines


def main() -> None:
    """Measure and print."""
    quick = options(__doc__)
    configure("json", "warning")
    with tempfile.TemporaryDirectory() as folder:
        nats = NatsServer(Path(folder))
        nats.start()
        try:
            sent, answered, baselines = asyncio.run(measure(50 if quick else 500, Path(folder), nats.url))
        finally:
            nats.kill()
    baseline_p99 = round(percentile(baselines, 0.99), 2)
    for name, found in (("decision to PATCH", sent), ("decision to its answer", answered)):
        p99 = round(percentile(found, 0.99), 2)
        result(name, "ms", found, baselines, target=TARGET_MS, p99=p99, baseline_p99=baseline_p99)


if __name__ == "__main__":
    main()
