"""One served model of a gateway."""

from msgspec import Struct

from loadline.gateway.backends import Backends
from loadline.gateway.metrics import GatewayMetrics
from loadline.gateway.moves import StreamMoves
from loadline.gateway.traffic import ModelTraffic


class ServedModel(Struct, frozen=True):
    """A model: its workers, its streams and its traffic."""

    name: str
    backends: Backends
    traffic: ModelTraffic
    moves: StreamMoves
    metrics: GatewayMetrics
    hold_s: float
    """Time that a request waits for a worker."""
    stall_s: float
    """Time for which an engine may send nothing once it has begun to stream tokens."""
    first_byte_s: float | None = None
    """Time that an engine has until the first output of a stream, or for a whole answer; None: no limit."""
