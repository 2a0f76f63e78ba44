"""Splitting of a status into messages, as NATS and its readers limit the size of a frame."""

from msgspec.structs import replace

from loadline.core.vocabulary.status import AgentStatus, ModelStatus
from loadline.wire.codec import encode

STATUS_BYTES_MAX = 512 * 1024
"""Size above which a status omits its workers and migrations: 4,000 workers are half a MiB."""
PART_BYTES_MAX = 200 * 1024
"""Maximum size of one message: agents and scalers accept 256 KiB by default, servers 1 MiB."""


def without_lists(status: AgentStatus) -> AgentStatus:
    """Return the status without its lists of workers and migrations; all counts stay."""
    return replace(status, models=tuple(map(_without_lists, status.models)))


def _without_lists(model: ModelStatus) -> ModelStatus:
    migrations = model.migrations
    return replace(
        model,
        pools=tuple(replace(pool, workers=()) for pool in model.pools),
        migrations=None if migrations is None else replace(migrations, in_flight_commands=(), silent_workers=()),
    )


def split_status(status: AgentStatus) -> list[AgentStatus]:
    """Split the status into parts of at most ``PART_BYTES_MAX``: models in order, each in one part.

    The first part has the fields that concern all models. A part of a single model, or the first, may be larger.
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
    """Return the status of these parts, in order."""
    return replace(parts[0], models=tuple(model for part in parts for model in part.models), part=0, parts=1)
