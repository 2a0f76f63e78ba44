"""Options of a gateway."""

from collections.abc import Mapping

from msgspec import Struct

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.servers import EtcdKnobs, NatsKnobs


class GatewayOptions(Struct, frozen=True):
    """Models that a gateway serves, its servers, and its limits."""

    objectives: Mapping[str, ObjectiveKnobs | None]
    """Served models, with the objectives to report attainment of; None: it is not reported."""
    host: str = "127.0.0.1"
    port: int = 8080
    name: str = "gateway"
    """Name in traffic reports; each gateway needs its own."""
    nats: NatsKnobs = NatsKnobs()
    etcd: EtcdKnobs = EtcdKnobs()
    root: str = "loadline"
    namespace: str = "default"
    held_max: int = 1_000
    """Requests of a model that wait for a worker; further ones are refused."""
    held_bytes_max: int = 256 * 1024 * 1024
    """Bytes of the bodies of these requests."""
    hold_s: float = 300.0
    """Time that a request waits for a worker: engines take minutes to load a model."""
    stall_s: float = 60.0
    """Time for which an engine may send nothing but comments once it streams tokens; then another one continues."""
    first_byte_s: float | None = None
    """Time that an engine has until the first byte of an answer; None: no limit, since queues may take minutes."""
    body_bytes_max: int = 32 * 1024 * 1024
    """Largest body of a request; images are part of it."""
