"""Time from a decision on NATS to its PATCH, as the Kubernetes scaler sends it.

One decision after another for a LeaderWorkerSet whose selector selects no pod. The baseline is a GET of the object,
before each decision: the scaler reads it once before it changes it. The server is the one that LOADLINE_TEST_KUBECONFIG
names, else the double of the tests in this process.

  python tools/bench/kubernetes_scaler.py [--quick]
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
from loadline.rig.bench import options, percentile, result
from loadline.rig.servers import NatsServer
from loadline.scalers.driver import ReplicaScaler
from loadline.scalers.kubernetes.config import KubernetesKnobs, KubernetesModelKnobs, KubernetesPoolKnobs
from loadline.scalers.kubernetes.platform import KubernetesPlatform
from loadline.wire.codec import encode
from loadline.wire.subjects import Subjects
from tests.support.decisions import decision
from tests.support.kubernetes_double import MERGE
from tests.support.kubernetes_servers import LWS, REAL, api_server, path_of
from tests.waiting import until_async

TARGET_MS = 20.0
PAUSE_S = 0.1  # the observation after a change ends before the next decision
NAME = "bench"


class TimedApi(KubernetesApi):
    """Client that records when it begins to send each change."""

    def __init__(self, kubeconfig: str) -> None:
        super().__init__(kubeconfig)
        self.sent: asyncio.Queue[float] = asyncio.Queue()

    async def patch(self, *arguments: Any, **options_of_patch: Any) -> None:
        """Record the time, and send."""
        self.sent.put_nowait(time.monotonic())
        await super().patch(*arguments, **options_of_patch)


async def measure(decisions: int, directory: Path, nats_url: str) -> tuple[list[float], list[float]]:
    """Return the times from decisions to changes and the baselines, in ms."""
    found, baselines = [], []
    async with api_server("real" if REAL else "double", directory) as server:
        target: ObjectName = await server.create(LWS, NAME, {"spec": {"replicas": 1}})
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
                await api.get(target)
                baselines.append((time.monotonic() - began_s) * 1_000)
                replicas = 2 + sequence % 8
                message = decision(1, sequence, PoolTarget("decode", "decode", replicas, 0))
                began_s = time.monotonic()
                await bus.publish(Subjects("loadline").decision("m"), encode(message))
                found.append((await api.sent.get() - began_s) * 1_000)

                async def is_set(wanted: int = replicas) -> bool:
                    return bool((await api.get(target))["spec"]["replicas"] == wanted)

                await until_async(is_set)
                await asyncio.sleep(PAUSE_S)
            stop.set()
            await running
            await platform.close()
        await bus.close()
    return found, baselines


def main() -> None:
    """Measure and print."""
    quick = options(__doc__)
    configure("json", "warning")
    with tempfile.TemporaryDirectory() as folder:
        nats = NatsServer(Path(folder))
        nats.start()
        try:
            found, baselines = asyncio.run(measure(50 if quick else 300, Path(folder), nats.url))
        finally:
            nats.kill()
    p99, baseline_p99 = (round(percentile(values, 0.99), 2) for values in (found, baselines))
    result("decision to PATCH", "ms", found, baselines, target=TARGET_MS, p99=p99, baseline_p99=baseline_p99)


if __name__ == "__main__":
    main()
