"""A status as messages: of many models it is more than one, for NATS and its readers take no frame of any size."""

from msgspec.structs import replace

from loadline.core.vocabulary.status import AgentStatus, ModelStatus
from loadline.wire.codec import encode

STATUS_BYTES_MAX = 512 * 1024
"""A larger status goes without its workers and moves: 4,000 workers are half a MiB."""
PART_BYTES_MAX = 200 * 1024
"""Of one message: agents and scalers take 256 KiB by default, servers 1 MiB."""


def without_lists(status: AgentStatus) -> AgentStatus:
    """The status without its lists of workers and moves; all counts stay."""
    return replace(status, models=tuple(map(_without_lists, status.models)))


def _without_lists(model: ModelStatus) -> ModelStatus:
    moves = model.migrations
    return replace(
        model,
        pools=tuple(replace(pool, workers=()) for pool in model.pools),
        migrations=None if moves is None else replace(moves, in_flight_commands=(), silent_workers=()),
    )


def split_status(status: AgentStatus) -> list[AgentStatus]:
    """The status in parts of ``PART_BYTES_MAX``, one where it fits: models in order, each whole.

    The first part has what is said of all models together. A single model, or that, may be larger.
    """
    head = len(encode(replace(status, models=())))
    others = replace(status, models=(), gpus=None, supplies=(), rejected={}, counters={})
    rest = len(encode(others))
    groups: list[list[ModelStatus]] = [[]]
    size = head
    for model in status.models:
        added = len(encode(model)) + 1
        if groups[-1] and size + added > PART_BYTES_MAX:
            groups.append([])
            size = rest
        groups[-1].append(model)
        size += added
    return [
        replace(others if part else status, models=tuple(models), part=part, parts=len(groups))
        for part, models in enumerate(groups)
    ]


def join_status(parts: list[AgentStatus]) -> AgentStatus:
    """The status that came in these parts, the first one first."""
    return replace(parts[0], models=tuple(model for part in parts for model in part.models), part=0, parts=1)
