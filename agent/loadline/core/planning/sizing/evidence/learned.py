"""Evidence of pools in the form that a successor of an agent reads."""

from collections.abc import Mapping
from functools import cached_property
from typing import Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from loadline.core.engines.latency_curve import LatencyCurve
from loadline.core.fleet.pool import Pool
from loadline.core.planning.sizing.evidence.latency import PoolEvidence
from loadline.core.planning.sizing.evidence.prompt_speed import PromptSpeed
from loadline.core.planning.sizing.request_lengths import Lengths
from loadline.core.vocabulary.scalars import Role

_EXPORT_MS: Final = 300_000
"""Age of an export after which changed points are exported too; points of new rates are at once."""


class EngineKind(Struct, frozen=True):
    """Role and hardware of a pool: evidence of others does not apply."""

    role: Role
    gpus_per_worker: int
    accelerator: str

    @classmethod
    def of(cls, pool: Pool) -> "EngineKind":
        """Return the kind of a pool's engines."""
        return cls(pool.knobs.role, pool.knobs.gpus_per_worker, pool.knobs.accelerator)


class LearnedPool(Struct, frozen=True):
    """Lasting part of the evidence of a pool. It shares the curves of the evidence, unless it is a copy."""

    kind: EngineKind
    itl: LatencyCurve
    ttft: LatencyCurve
    saturated_rate: float
    kv_per_work_ms: float
    ttft_variation: float
    hold_ms: int
    """Hold of shrinks that lulls have taught."""
    speed: PromptSpeed = field(default_factory=PromptSpeed)

    @classmethod
    def of(cls, kind: EngineKind, evidence: PoolEvidence, hold_ms: int) -> "LearnedPool":
        """Return the lasting part of the evidence."""
        return cls(
            kind,
            evidence.itl,
            evidence.ttft,
            evidence.saturated_rate,
            evidence.kv_per_work_ms,
            evidence.ttft_variation,
            hold_ms,
            evidence.speed,
        )

    @property
    def is_empty(self) -> bool:
        """True if nothing was learned."""
        return not (self.itl.bins or self.ttft.bins or self.saturated_rate)

    def copy(self) -> "LearnedPool":
        """Return a copy without the latest points, which are of the present load."""
        return replace(self, itl=_lasting(self.itl), ttft=_lasting(self.ttft), speed=replace(self.speed))

    def evidence(self) -> PoolEvidence:
        """Return evidence to continue with."""
        itl, ttft = _lasting(self.itl), _lasting(self.ttft)
        rates, speed = (self.saturated_rate, self.kv_per_work_ms), replace(self.speed)
        return PoolEvidence(itl, ttft, *rates, ttft_variation=self.ttft_variation, speed=speed, settled=True)


class LearnedEvidence(Struct, frozen=True, dict=True):
    """Lasting evidence of all pools, and lengths of requests."""

    lengths: Lengths
    pools: dict[str, LearnedPool]

    @cached_property
    def age(self) -> list[tuple[str, list[int], list[int], int]]:
        """Keys of the bins, and five minutes of the newest point: an export is renewed when they change."""
        return [
            (name, one.itl.keys, one.ttft.keys, max(one.itl.newest_ms, one.ttft.newest_ms) // _EXPORT_MS)
            for name, one in sorted(self.pools.items())
        ]

    @cached_property
    def encoded(self) -> bytes:
        """The evidence as JSON; only of a ``copy``, as it is encoded once."""
        return msgspec.json.encode(self)

    def copy(self) -> "LearnedEvidence":
        """Return a copy, which the fleet changes no more."""
        return LearnedEvidence(replace(self.lengths), {name: one.copy() for name, one in self.pools.items()})


def decode_evidence(data: bytes) -> LearnedEvidence | None:
    """Decode exported evidence; None if it is unreadable."""
    try:
        return msgspec.json.decode(data, type=LearnedEvidence)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def merged(pools: Mapping[str, LearnedPool], before: Mapping[str, LearnedPool]) -> dict[str, LearnedPool]:
    """Return the known pools, with those of before that are not known now, by name."""
    known = {name: one for name, one in pools.items() if not one.is_empty}
    return dict(sorted((dict(before) | known).items()))


def _lasting(curve: LatencyCurve) -> LatencyCurve:
    """Copy a curve without its latest point."""
    bins = {key: replace(one) for key, one in curve.bins.items()}
    return LatencyCurve(bins, curve.base_min_ms, floor_ms=curve.floor_ms)
