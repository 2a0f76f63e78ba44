"""Decisions as a scaler received them, with deadlines on its own clock."""

import time

from loadline.core.vocabulary.decisions import PoolTarget
from loadline.wire.messages import ScalingDecision


class ReceivedDecision:
    """A decision as this scaler received it, with deadlines on its own monotonic clock."""

    def __init__(self, decision: ScalingDecision) -> None:
        self.decision = decision
        self.targets: dict[str, PoolTarget] = {target.pool: target for target in decision.targets}
        """Targets by name of the pool."""
        self._received_s = time.monotonic()
        self._expires_s = self._received_s + decision.ttl_ms / 1_000

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.decision.model

    def apply_repetition(self, ttl_ms: int) -> None:
        """Apply the remaining time of a repeated announcement: it may shorten the expiry, never extend it."""
        self._expires_s = min(self._expires_s, time.monotonic() + ttl_ms / 1_000)

    @property
    def expired(self) -> bool:
        """True once it is too late to begin."""
        return time.monotonic() >= self._expires_s

    @property
    def drain_expired(self) -> bool:
        """True once ``drain_ttl_ms`` have passed: its victims may be deleted whether or not they are drained."""
        return time.monotonic() >= self._received_s + self.decision.drain_ttl_ms / 1_000
