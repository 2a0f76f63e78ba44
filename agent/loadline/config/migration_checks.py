"""Validation of migration settings: contradictions are errors, and keys without effect are warnings."""

from collections.abc import Iterator
from typing import Final

from loadline.config.knobs import Config
from loadline.core.migration.knobs import PACKING, MigrationKnobs
from loadline.core.state.settings import ModelKnobs
from loadline.errors import ConfigError

_REPORT_MS: Final = 1_000
"""Default interval of workers' reports."""
_LOADS: Final = {"decode": "decode_load", "aggregated": "neutral_load"}
"""Load policies by role."""
_KV: Final = "kv_cache_usage_ratio_projected"
_TPOT: Final = "predicted_tpot"
_KV_THRESHOLD_MAX: Final = 3.0
"""Largest plausible threshold of cache usage; a larger one was probably meant in per cent."""


def migration_only_warnings(config: Config) -> Iterator[str]:
    """Yield a warning if the agent only migrates and no model has migration enabled."""
    if config.agent.only and not any(model.migration.enabled for model in config.models):
        yield (
            "agent.only: is migration, and no model has migration enabled, so this agent does nothing. Set "
            "enabled = true in [models.migration], or remove `only`."
        )


def migration_errors(model: ModelKnobs, place: str) -> Iterator[ConfigError]:
    """Yield errors of thresholds that contradict each other, and of policies whose metric is not available."""
    knobs, here = model.migration, f"{place}.migration"
    ordered = (
        ("tpot_migrate_out_floor_threshold", "tpot_slo_dispatch_threshold"),
        ("tpot_slo_dispatch_threshold", "tpot_migrate_out_ceil_threshold"),
        ("breaker_ms", "breaker_max_ms"),
    )
    for low, high in ordered:
        if getattr(knobs, low) > getattr(knobs, high):
            problem = f"{getattr(knobs, low):g} is above {high} {getattr(knobs, high):g}"
            yield ConfigError(f"{here}.{low}", problem, f"Lower it or raise {high}.")
    yield from _value_errors(knobs, f"{here}.req_select_value")
    if knobs.enabled:
        yield from _tpot_errors(model, knobs, f"{here}.tpot_profiling_data_path")


def _value_errors(knobs: MigrationKnobs, key: str) -> Iterator[ConfigError]:
    rule, value = knobs.req_select_rule, knobs.req_select_value
    if rule == "NUM_REQ" and 0.0 <= value < 1.0:
        problem = f"{value:g} is less than one request, but req_select_rule is NUM_REQ"
        yield ConfigError(key, problem, "Give 1 or more, or -1 for all.")
    if rule == "RATIO" and value > 1.0:
        problem = f"{value:g} is more than the whole cache, but req_select_rule is RATIO"
        yield ConfigError(key, problem, "Give a fraction up to 1, or 0 for half the load gap.")


def _tpot_errors(model: ModelKnobs, knobs: MigrationKnobs, key: str) -> Iterator[ConfigError]:
    active = knobs.active_policies
    by_tpot = [name for name in active if name in PACKING]
    by_tpot += [name for role, name in _LOADS.items() if name in active and _metric(knobs, role) == _TPOT]
    if not by_tpot or knobs.tpot_profiling_data_path:
        return
    for pool in model.pools:
        if pool.role in {"decode", "aggregated"} and not pool.decode_profile and pool.linear is None:
            problem = f"the time per output token of pool {pool.name} is unknown, and {by_tpot[0]} needs it"
            yield ConfigError(key, problem, "Set decode_profile or linear in the pool, or the path of a profile here.")
            return


def migration_warnings(model: ModelKnobs, place: str) -> Iterator[str]:
    """Yield warnings about values without effect, and about implausible values."""
    knobs, here = model.migration, f"{place}.migration"
    if not knobs.enabled:
        if knobs != MigrationKnobs():
            yield f"{here}: migration is not enabled, so no request migrates. Set enabled = true."
        return
    active = knobs.active_policies
    for role, name in _LOADS.items():
        if _has_pair(model, role) and name not in active:
            yield f"{here}.policies: {name} is not listed, so load is not balanced. Add it."
    if knobs.hops_max == 0:
        yield f"{here}.hops_max: with 0, load and bin packing policies migrate nothing. Set 1 or more."
    for role, name in _LOADS.items():
        if _has_pair(model, role) and name in active:
            yield from _threshold_warnings(knobs, role, here)
    if knobs.suspect_after_ms < 2 * _REPORT_MS:
        yield (
            f"{here}.suspect_after_ms: {knobs.suspect_after_ms} ms is less than two reports of a worker that reports "
            f"every second, so one lost report evacuates the worker. Set {2 * _REPORT_MS} or more."
        )
    if knobs.instance_staleness_seconds * 1_000 <= knobs.suspect_after_ms:
        yield (
            f"{here}.instance_staleness_seconds: {knobs.instance_staleness_seconds} s is not above "
            "suspect_after_ms, but samples of a healthy worker may stay the same for that long. Set several times "
            "suspect_after_ms."
        )


def _threshold_warnings(knobs: MigrationKnobs, role: str, here: str) -> Iterator[str]:
    """Yield warnings about thresholds that are implausible for cache usage."""
    if _metric(knobs, role) != _KV:
        return
    key, threshold, gap = _threshold_key(role), _threshold(knobs, role), knobs.load_balance_threshold
    defaults = MigrationKnobs()
    if (threshold, gap) == (_threshold(defaults, role), defaults.load_balance_threshold):
        yield (
            f"{here}.load_balance_threshold: with {threshold:g} and {gap:g} a cache is full before requests migrate. "
            f"Set {key} = 0.9 and this to 0.2."
        )
    elif threshold > _KV_THRESHOLD_MAX:
        yield f"{here}.{key}: {threshold:g} means {threshold:g} full caches, since it is a fraction. Set 0.9."
    elif gap >= 1.0:
        yield (
            f"{here}.load_balance_threshold: {gap:g} is a difference of at least one full cache, which two workers "
            "rarely reach. Set 0.2."
        )


def _metric(knobs: MigrationKnobs, role: str) -> str:
    return knobs.decode_load_metric if role == "decode" else knobs.neutral_load_metric


def _threshold(knobs: MigrationKnobs, role: str) -> float:
    return knobs.decode_load_threshold if role == "decode" else knobs.neutral_load_threshold


def _threshold_key(role: str) -> str:
    return "decode_load_threshold" if role == "decode" else "neutral_load_threshold"


def _has_pair(model: ModelKnobs, role: str) -> bool:
    """Return True if a role can have two workers."""
    return sum(pool.replicas_max for pool in model.pools if pool.role == role) > 1
