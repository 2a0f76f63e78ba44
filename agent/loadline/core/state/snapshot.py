"""Snapshots of a state, with which a replay begins."""

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Struct

from loadline.core.engines.accelerator import UNNAMED_ACCELERATOR
from loadline.core.engines.profile import NO_PROFILE
from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.worker import WorkerState
from loadline.core.planning.planners import PLANNERS, Planner
from loadline.core.planning.plugin_values import encode_plain
from loadline.core.state.agent_state import AgentState
from loadline.core.state.model_state import accelerator_of, engine_of
from loadline.core.state.settings import Settings

_SLICE_WORKERS: Final = 128
"""Workers encoded at a time; no other thread runs for 0.2 ms."""


class Snapshot(Struct, frozen=True):
    """A state and its planners, which are decoded by the types that the settings name."""

    state: AgentState
    planners: dict[str, msgspec.Raw]


def capture(state: AgentState, planners: dict[str, Planner]) -> Callable[[], dict[str, Any]]:
    """Capture a state and its planners at this moment.

    Encoding 10,000 workers takes 15 ms or more, copying them 5 ms. Workers are therefore copied now and encoded later,
    in slices, between which other threads can run. Everything else is small and encoded now, except for engine
    profiles, which the settings contain.

    Returns:
        A function that encodes the workers and returns a ``Snapshot`` as a mapping; call it once, in any thread.
    """
    pools: list[dict[str, Any]] = []

    def capture_pool(pool: Pool) -> dict[str, Any]:
        captured = _fields(
            pool,
            engine=NO_PROFILE,
            accelerator=UNNAMED_ACCELERATOR,
            workers={name: worker.copy() for name, worker in pool.workers.items()},
        )
        pools.append(captured)
        return captured

    def capture_model(model: Model) -> dict[str, Any]:
        return _fields(model, pools={name: capture_pool(pool) for name, pool in model.pools.items()})

    fleet = _fields(state.fleet, models={name: capture_model(model) for name, model in state.fleet.models.items()})
    snapshot = {
        "state": _fields(state, fleet=fleet),
        "planners": {name: msgspec.Raw(encode_plain(one)) for name, one in planners.items()},
    }

    def finish() -> dict[str, Any]:
        for pool in pools:
            pool["workers"] = _encode_in_slices(pool["workers"])
        return snapshot

    return finish


def _fields(struct: Struct, **replaced: Any) -> dict[str, Any]:
    """Return the encoded fields of a struct, with some replaced by other values."""
    names = struct.__struct_fields__
    return {name: replaced[name] if name in replaced else _raw(getattr(struct, name)) for name in names}


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _encode_in_slices(workers: dict[str, WorkerState]) -> msgspec.Raw:
    left = iter(workers.items())
    slices = iter(lambda: dict(islice(left, _SLICE_WORKERS)), {})
    return msgspec.Raw(b"{" + b",".join(msgspec.json.encode(one)[1:-1] for one in slices) + b"}")


def decode_snapshot(settings: Settings, data: bytes) -> tuple[AgentState, dict[str, Planner]]:
    """Decode a snapshot.

    Raises:
        msgspec.DecodeError: The snapshot has another layout, such as that of another version, or is of other
            settings.
        UnicodeDecodeError: A text in it is not UTF-8.
        RecursionError: It is nested too deeply.
    """
    snapshot = msgspec.json.decode(data, type=Snapshot)
    snapshot.state.explanations.check()
    for model in snapshot.state.fleet.models.values():
        for pool in model.pools.values():
            pool.engine = engine_of(settings, model.name, pool.name)
            pool.accelerator = accelerator_of(settings, pool.knobs)
    kinds = {model.name: PLANNERS[model.planner] for model in settings.models}
    if unknown := sorted(snapshot.planners.keys() - kinds.keys()):
        raise msgspec.ValidationError(f"the settings lack its models {', '.join(unknown)}")
    planners = {model: msgspec.json.decode(raw, type=kinds[model]) for model, raw in snapshot.planners.items()}
    return snapshot.state, planners
