"""The fleets of Llumnix's cases as workers under a real controller, and its view of them."""

from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from loadline.core.engines.arrays import Mask
from loadline.core.engines.tpot import TpotSweep
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.migration.load_view import LoadView
from loadline.core.rounds.migration_round import MigrationGroup
from loadline.core.vocabulary.events import PauseChanged
from loadline.core.vocabulary.scalars import Role
from tests.support.fleet_harness import START
from tests.support.migration_world import MigrationWorld
from tests.vectors.answering import only

ROLES: Final[dict[str, Role]] = {"prefill": "prefill", "decode": "decode", "neutral": "aggregated"}
POOLS: Final = tuple(PoolKnobs(role, role) for role in ROLES.values())
CONFIG: Final = {
    "decode_load_threshold": "decode_load_threshold",
    "neutral_load_threshold": "neutral_load_threshold",
    "load_balance_threshold": "load_balance_threshold",
    "scope": "load_balance_scope",
    "failover_domain": "failover_domain",
    "request_rule": "req_select_rule",
    "request_order": "req_select_order",
    "request_value": "req_select_value",
    "tpot_slo": "tpot_slo",
    "ceil": "tpot_migrate_out_ceil_threshold",
    "floor": "tpot_migrate_out_floor_threshold",
    "dispatch": "tpot_slo_dispatch_threshold",
}
INSTANCE: Final = (
    "id", "infer_type", "schedulable", "age_ms", "node", "unit", "reserved", "status", "dp", "needs_failover",
)  # fmt: skip
TOTAL, USED, QUEUED = "num_total_gpu_tokens", "num_used_gpu_tokens", "num_uncomputed_tokens_all_waiting_prefills"
BATCH, TOKENS = "scheduler_running_to_decode_requests_num", "scheduler_running_to_decode_tokens_num"
STATUS: Final = {
    TOTAL: "kv_blocks_total",
    USED: "kv_blocks_used",
    QUEUED: "queued_prefill_tokens",
    TOKENS: "decode_tokens",
    BATCH: "decode_batch_requests",
    "num_uncomputed_tokens_scheduler_running_prefills": "active_prefill_tokens",
    "num_unallocated_tokens_scheduler_running_prefills": "unallocated_prefill_tokens",
    "hybrid_scheduler_waiting_to_decode_tokens_num": "waiting_to_decode_tokens",
    "hybrid_scheduler_waiting_to_decode_requests_num": "waiting_to_decode_requests",
    "num_waiting_requests": "waiting_requests",
    "num_running_requests": "running_requests",
}
IN_CACHE: Final = {TOTAL, USED, QUEUED}
STALENESS_S: Final = 60
FAR_MS: Final = 200_000
"""Age of the last report of a worker that never reported."""
REQUESTS: Final = 10
"""Running requests of a worker whose case gives only tokens."""


def world_of(given: dict[str, Any], shared: dict[str, Any]) -> MigrationWorld:
    """Return a world with the instances as workers of three pools, one for each type, registered in their order.

    Each has last reported at the age in the case. The model is paused, so nothing has migrated yet.
    """
    config = given.get("config", {})
    only(config, *CONFIG, "policies", "staleness_seconds")
    silent_ms = max(100, 1_000 * config.get("staleness_seconds", STALENESS_S))
    knobs = MigrationKnobs(
        policies=tuple(config.get("policies", "decode_failover").split(",")),
        suspect_after_ms=silent_ms,
        consolidate_after_ms=0,
        migrations_max=10_000,
        migrations_per_worker_max=1_024,
        **{CONFIG[key]: value for key, value in config.items() if key in CONFIG},
    )
    sweep = _sweep(shared, given["tpot_profile"]) if "tpot_profile" in given else None
    world = MigrationWorld(knobs, POOLS, sweep, stale_after_ms=silent_ms)
    world.handle(PauseChanged("m", paused=True))
    end, times = START + 2 * FAR_MS, scale(given["instances"])
    for one in given["instances"]:
        only(one, *INSTANCE)
        record = {"node": one.get("node", ""), "unit": one.get("unit", ""), "reserved": one.get("reserved", "")}
        role = ROLES[one.get("infer_type", "decode")]
        world.handle(world.worker(one["id"], role, data_parallel_size=one.get("dp", 1), **record))
    for one in sorted(given["instances"], key=lambda one: -min(one.get("age_ms", 0), FAR_MS)):
        world.now = end - int(min(one.get("age_ms", 0), FAR_MS))
        _report(world, one, times)
    world.now = end
    memory, model = world.controller.state.migration, world.controller.state.fleet.models["m"]
    model.migration.due_ms = end  # a full round takes place as soon as the model is no longer paused
    memory.last_turn_at_ms, memory.listening_since_ms = end, -1  # and the agent has listened all the time
    return world


def scale(instances: list[dict[str, Any]]) -> int:
    """Return a factor of cache sizes: tokens may exceed the cache in a case, so the cache is enlarged at the same
    usage.
    """
    statuses = [one.get("status", {}) for one in instances]
    ratios: list[int] = [100 * status.get(TOKENS, 0) // status[TOTAL] for status in statuses if status.get(TOTAL)]
    return max([1, *ratios])


def _report(world: MigrationWorld, one: dict[str, Any], times: int) -> None:
    status, ranks = one.get("status", {}), one.get("dp", 1)
    only(status, *STATUS)
    reported = {STATUS[key]: value * (times if key in IN_CACHE else 1) for key, value in status.items()}
    running = status.get(BATCH, 0 if "num_waiting_requests" in status else REQUESTS)
    first = world.load_report(
        one["id"],
        **{
            "kv_blocks_total": 1_000 * times,
            "kv_blocks_used": 0,
            "decode_tokens": 0,
            "running_requests": running,
            "waiting_requests": 0,
            "schedulable": one.get("schedulable", not one.get("needs_failover", False)),
        }
        | reported,
    )
    idle = {"running_requests": 0, "decode_batch_requests": 0, "kv_blocks_used": 0, "decode_tokens": 0}
    others = [
        replace(first.samples[0], rank=rank, queued_prefill_tokens=0, kv_blocks_total=1, **idle)
        for rank in range(1, ranks)
    ]
    world.handle(replace(first, samples=[*first.samples, *others]))


def _sweep(shared: dict[str, Any], name: str) -> TpotSweep:
    points = shared["meta"]["tpot_profiles"][name]
    return TpotSweep(
        tuple(float(point["batch"]) for point in points),
        tuple(float(point["tokens_per_request"]) for point in points),
        tuple(point["p50"] for point in points),
    )


def groups(world: MigrationWorld) -> list[MigrationGroup]:
    """Return the groups of workers between which requests can migrate, as of the last evaluation."""
    return world.controller._mode.migration._groups["m"]


def view_of(world: MigrationWorld, group: MigrationGroup, failing: Mask | None = None) -> LoadView:
    """Return the view of a group before any migration."""
    state = world.controller.state
    group.table.apply_in_flight([])
    nobody = np.zeros(len(group.table), dtype=np.bool_)
    return LoadView(
        group.table,
        world.knobs,
        failed=nobody if failing is None else failing,
        leaving=nobody,
        tpot=group.table.tpot,
        itl_ms=state.fleet.models["m"].objectives.itl_ms,
        fresh_after_ms=world.now - state.fleet.knobs.stale_after_ms,
        remaining_ms=lambda: None,
        now=world.now,
    )


def names(group: MigrationGroup, mask: Mask) -> list[str]:
    """Return the names of the workers in the mask, in order."""
    return sorted(key[1] for key, there in zip(group.table.keys, mask, strict=True) if there)
