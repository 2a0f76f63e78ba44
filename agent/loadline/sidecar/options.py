"""Options of the sidecar."""

from msgspec import Struct

from loadline.core.vocabulary.scalars import Role
from loadline.servers import EtcdKnobs, NatsKnobs


class SidecarOptions(Struct, frozen=True, kw_only=True):
    """Engine, its description as a worker, and servers.

    Attributes:
        engine: Name in the table of engines.
        url: Base URL of its HTTP API.
        advertise: Base URL that others use; empty: ``url``.
        model: Name of the model; empty: the one that the engine tells.
        pool: Empty: the role.
        max_batch_requests: None: what the engine tells.
        report_traffic: Report the engine's requests as traffic too.
        command: Command that starts the engine; empty: it is started by others.
        pid: Process of an engine that others have started, which ends it once it is drained; None: it is left alone.
        wait_after_drain: Wait for SIGTERM after a drain even if the engine was started here, since something restarts
            each program that ends; but not longer than the removal of the worker may take.
        grace_s: Time for the requests in the engine to end when the sidecar is stopped.
    """

    engine: str = "vllm"
    url: str = "http://127.0.0.1:8000"
    advertise: str = ""
    model: str = ""
    pool: str = ""
    role: Role = "aggregated"
    worker: str
    gpus: int = 1
    accelerator: str = ""
    node: str = ""
    unit: str = ""
    max_batch_requests: int | None = None
    report_traffic: bool = False
    command: tuple[str, ...] = ()
    pid: int | None = None
    wait_after_drain: bool = False
    grace_s: float = 30.0
    interval_s: float = 1.0
    lease_ttl_s: int = 10
    root: str = "loadline"
    namespace: str = "default"
    nats: NatsKnobs = NatsKnobs()
    etcd: EtcdKnobs = EtcdKnobs()
