"""Load of an engine as moves of its streams need it. Pure."""

from collections.abc import Sequence

from msgspec.structs import replace

from loadline.core.migration.requests import MigratableRequest
from loadline.core.vocabulary.samples import WorkerSample
from loadline.engine_metrics.engine_reading import EngineReading


def has_room(reading: EngineReading | None, tokens: int) -> bool:
    """Return True if so many more tokens fit into the KV cache of an engine, or if it does not tell."""
    if reading is None or reading.kv_blocks_total is None or reading.block_size_tokens is None:
        return True
    ratios = [load.kv_usage_ratio for load in reading.ranks if load.kv_usage_ratio is not None]
    free_blocks = reading.kv_blocks_total * sum(1.0 - ratio for ratio in ratios)
    return not ratios or tokens <= free_blocks * reading.block_size_tokens


def with_unmovable(
    samples: Sequence[WorkerSample], reading: EngineReading, streams: Sequence[MigratableRequest]
) -> list[WorkerSample]:
    """Return samples that count the requests which no gateway can move, such as those that came past it."""
    if reading.requests is None or not samples:
        return list(samples)
    unmovable = max(reading.requests - sum(one.movable for one in streams), 0)
    return [replace(samples[0], unmovable_requests=unmovable), *samples[1:]]
