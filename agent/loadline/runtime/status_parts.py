"""Encoding of a status as messages, as NATS and its readers limit the size of a frame."""

from collections.abc import Sequence

from msgspec.structs import replace

from loadline.core.vocabulary.status import AgentStatus, ModelStatus
from loadline.runtime.slices import Steps, map_in_steps
from loadline.wire.codec import encode

STATUS_BYTES_MAX = 512 * 1024
"""Size of all models above which a status omits their workers and migrations: 4,000 workers are half a MiB."""
PART_BYTES_MAX = 200 * 1024
"""Maximum size of one message: agents and scalers accept 256 KiB by default, servers 1 MiB."""


def encode_status(status: AgentStatus) -> Steps[tuple[list[bytes], int]]:
    """Encode the status as messages within the size limits of servers and readers.

    Returns:
        The messages, and the size of the models. Models above ``STATUS_BYTES_MAX`` lose their lists.
    """
    sizes = yield from map_in_steps(_size, status.models)
    size = sum(sizes)
    if size > STATUS_BYTES_MAX:
        status = replace(status, models=tuple((yield from map_in_steps(without_lists, status.models))))
        sizes = yield from map_in_steps(_size, status.models)
    return (yield from map_in_steps(encode, _split(status, sizes))), size


def _size(model: ModelStatus) -> int:
    return len(encode(model)) + 1


def without_lists(model: ModelStatus) -> ModelStatus:
    """Return the status of a model without its lists of workers and migrations; all counts stay."""
    migrations = model.migrations
    if migrations is not None:
        migrations = replace(migrations, in_flight_commands=(), silent_workers=(), recent=())
    return replace(
        model,
        pools=tuple(replace(pool, workers=()) for pool in model.pools),
        migrations=migrations,
    )


def _split(status: AgentStatus, sizes: Sequence[int]) -> list[AgentStatus]:
    """Split the status into parts of at most ``PART_BYTES_MAX``: models of these sizes in order, each in one part.

    The first part has the fields that concern all models. A part of a single model, or the first, may be larger.
    """
    head = replace(status, models=())
    rest = replace(head, gpus=None, supplies=(), alarms=(), rejected={}, counters={})
    groups: list[list[ModelStatus]] = [[]]
    size, rest_bytes = len(encode(head)), len(encode(rest))
    for model, added in zip(status.models, sizes, strict=True):
        if groups[-1] and size + added > PART_BYTES_MAX:
            groups.append([])
            size = rest_bytes
        groups[-1].append(model)
        size += added
    return [
        replace(rest if part else head, models=tuple(models), part=part, parts=len(groups))
        for part, models in enumerate(groups)
    ]


def join_status(parts: list[AgentStatus]) -> AgentStatus:
    """Return the status of these parts, in order."""
    return replace(parts[0], models=tuple(model for part in parts for model in part.models), part=0, parts=1)
