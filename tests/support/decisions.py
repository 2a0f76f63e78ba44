"""Decisions as an agent announces them."""

from loadline.core.vocabulary.decisions import PoolTarget
from loadline.wire.messages import ScalingDecision


def decision(
    epoch: int,
    sequence: int,
    *targets: PoolTarget,
    model: str = "m",
    ttl_ms: int = 60_000,
    drain_ttl_ms: int = 60_000,
) -> ScalingDecision:
    """A decision whose number is (epoch, sequence)."""
    return ScalingDecision(
        decision_id=f"{model}-{epoch}-{sequence}",
        model=model,
        epoch=epoch,
        sequence=sequence,
        issued_at_ms=1,
        expires_at_ms=1 + ttl_ms,
        targets=targets,
        reasons=(),
        drain_ttl_ms=drain_ttl_ms,
        ttl_ms=ttl_ms,
    )
