"""Snapshots of a state: a replay begins with one."""

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
from loadline.core.state.agent_state import AgentState
from loadline.core.state.model_state import accelerator_of, engine_of
from loadline.core.state.settings import Settings

_SLICE_WORKERS: Final = 128
"""Workers encoded at a time: no other thread can run for 0.2 ms."""


class Snapshot(Struct, frozen=True):
    """A state with its planners, whose types are known only by name."""

    state: AgentState
    planners: dict[str, msgspec.Raw]


def capture(state: AgentState, planners: dict[str, Planner]) -> Callable[[], dict[str, Any]]:
    """Capture everything as it is now.

    Returns:
        A function that returns what encodes to the JSON of a ``Snapshot``; call it once, in any thread.

    Encoding 10,000 workers takes 15 ms or more, copying them 5 ms: so they are copied now and encoded later, in
    slices, between which other threads may run. All else is small and encoded at once, except for engine profiles,
    which are in the settings and do not change.
    """
    pools: list[dict[str, Any]] = []

    def hold_pool(pool: Pool) -> dict[str, Any]:
        held = _hold(
            pool,
            engine=NO_PROFILE,
            accelerator=UNNAMED_ACCELERATOR,
            workers={name: worker.copy() for name, worker in pool.workers.items()},
        )
        pools.append(held)
        return held

    def hold_model(model: Model) -> dict[str, Any]:
        return _hold(model, pools={name: hold_pool(pool) for name, pool in model.pools.items()})

    fleet = _hold(state.fleet, models={name: hold_model(model) for name, model in state.fleet.models.items()})
    whole = {"state": _hold(state, fleet=fleet), "planners": {name: _raw(one) for name, one in planners.items()}}

    def finish() -> dict[str, Any]:
        for pool in pools:
            pool["workers"] = _in_slices(pool["workers"])
        return whole

    return finish


def _hold(struct: Struct, **given: Any) -> dict[str, Any]:
    """Return the fields of a struct, encoded except for those that are given."""
    return {name: given[name] if name in given else _raw(getattr(struct, name)) for name in struct.__struct_fields__}


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _in_slices(workers: dict[str, WorkerState]) -> msgspec.Raw:
    left = iter(workers.items())
    slices = iter(lambda: dict(islice(left, _SLICE_WORKERS)), {})
    return msgspec.Raw(b"{" + b",".join(msgspec.json.encode(one)[1:-1] for one in slices) + b"}")


def decode_snapshot(settings: Settings, data: bytes) -> tuple[AgentState, dict[str, Planner]]:
    """Decode what ``capture`` encoded.

    Raises:
        msgspec.DecodeError: It was not written by this version.
    """
    snapshot = msgspec.json.decode(data, type=Snapshot)
    for model in snapshot.state.fleet.models.values():
        for pool in model.pools.values():
            pool.engine = engine_of(settings, model.name, pool.name)
            pool.accelerator = accelerator_of(settings, pool.knobs)
    kinds = {model.name: PLANNERS[model.planner] for model in settings.models}
    planners = {model: msgspec.json.decode(raw, type=kinds[model]) for model, raw in snapshot.planners.items()}
    return snapshot.state, planners
