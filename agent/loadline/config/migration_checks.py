"""What a configuration says of moves: contradictions are errors, what can do nothing is a warning."""

from collections.abc import Iterator
from typing import Final

from loadline.config.knobs import Config
from loadline.core.migration.knobs import PACKING, MigrationKnobs
from loadline.core.state.settings import ModelKnobs
from loadline.errors import ConfigError

_REPORT_MS: Final = 1_000
"""How often workers report, where nobody says otherwise."""
_LOADS: Final = {"decode": "decode_load", "aggregated": "neutral_load"}
_KV: Final = "kv_cache_usage_ratio_projected"
_TPOT: Final = "predicted_tpot"
_SHARE_MAX: Final = 3.0
"""Of its cache that a worker is asked for: more waits nowhere for long, and a larger share was meant in per cent."""
_WORDS: Final = {"decode": "decode", "aggregated": "neutral"}


def migration_only_warnings(config: Config) -> Iterator[str]:
    """That an agent is to do nothing but what no model wants: whoever switches moves off may come to that."""
    if config.agent.only and not any(model.migration.enabled for model in config.models):
        yield (
            "agent.only: is migration, and no model has migration enabled, so this agent does nothing. Set "
            "enabled = true in [models.migration], or remove `only`."
        )


def check_migration(model: ModelKnobs, place: str) -> None:
    """Refuse thresholds that would have workers give and take at once, and policies that can know nothing.

    Raises:
        ConfigError: Two values contradict each other.
    """
    knobs, here = model.migration, f"{place}.migration"
    ordered = (
        ("tpot_migrate_out_floor_threshold", "tpot_slo_dispatch_threshold"),
        ("tpot_slo_dispatch_threshold", "tpot_migrate_out_ceil_threshold"),
        ("breaker_ms", "breaker_max_ms"),
    )
    for low, high in ordered:
        if getattr(knobs, low) > getattr(knobs, high):
            problem = f"{getattr(knobs, low):g} is above {high} {getattr(knobs, high):g}"
            raise ConfigError(f"{here}.{low}", problem, f"Lower it or raise {high}.")
    _check_value(knobs, here)
    if knobs.enabled:
        _check_tpot(model, knobs, here)


def _check_value(knobs: MigrationKnobs, here: str) -> None:
    rule, value, key = (
        knobs.req_select_rule,
        knobs.req_select_value,
        f"{here}.req_select_value",
    )
    if rule == "NUM_REQ" and 0.0 <= value < 1.0:
        raise ConfigError(
            key, f"{value:g} requests are none, and the rule is NUM_REQ", "Give 1 or more, or -1 for all."
        )
    if rule == "RATIO" and value > 1.0:
        problem = f"{value:g} is more than a whole cache, and the rule is RATIO"
        raise ConfigError(key, problem, "Give a share from 0 to 1, or 0 for half the difference.")


def _check_tpot(model: ModelKnobs, knobs: MigrationKnobs, here: str) -> None:
    by_tpot = [name for name in knobs.active_policies if name in PACKING]
    by_tpot += [
        name for role, name in _LOADS.items() if name in knobs.active_policies and _metric(knobs, role) == _TPOT
    ]
    if not by_tpot or knobs.tpot_profiling_data_path:
        return
    for pool in model.pools:
        if pool.role != "prefill" and not pool.decode_profile and pool.linear is None:
            problem = f"nothing tells the time per output token of pool {pool.name}, which {by_tpot[0]} goes by"
            remedy = "Give the pool a decode_profile or a table linear, or name a profile."
            raise ConfigError(f"{here}.tpot_profiling_data_path", problem, remedy)


def migration_warnings(model: ModelKnobs, place: str) -> Iterator[str]:
    """What can have no effect, or hardly the one that was meant."""
    knobs, here = model.migration, f"{place}.migration"
    if not knobs.enabled:
        if knobs != MigrationKnobs():
            yield f"{here}: migration is not enabled, so no request migrates. Set enabled = true."
        return
    missing = [name for role, name in _LOADS.items() if _has(model, role) and name not in knobs.active_policies]
    for name in missing:
        yield f"{here}.policies: {name} is not among them, so load stays where it is. Add it."
    if knobs.hops_max == 0:
        yield f"{here}.hops_max: 0 lets load and packing move nothing. Set 1 or more."
    for role, name in _LOADS.items():
        if name in knobs.active_policies and _has(model, role):
            yield from _load_warnings(knobs, role, here)
    if knobs.suspect_after_ms < 2 * _REPORT_MS:
        yield (
            f"{here}.suspect_after_ms: {knobs.suspect_after_ms} ms is less than two reports of a worker that reports "
            f"every second, so one that is lost has it emptied. Set {2 * _REPORT_MS} or more."
        )
    if knobs.instance_staleness_seconds * 1_000 <= knobs.suspect_after_ms:
        yield (
            f"{here}.instance_staleness_seconds: {knobs.instance_staleness_seconds} s is no longer than "
            f"suspect_after_ms, and some samples stay the same for so long. Set it well above."
        )


def _load_warnings(knobs: MigrationKnobs, role: str, here: str) -> Iterator[str]:
    """Thresholds that are no loads of the metric."""
    if _metric(knobs, role) != _KV:
        return
    key, least = f"{here}.{_WORDS[role]}_load_threshold", knobs.load_balance_threshold
    threshold = _thresholds(knobs, role)
    if (threshold, least) == _thresholds_of_old(role):
        yield (
            f"{here}.load_balance_threshold: with {threshold:g} and {least:g} a cache is full before "
            f"anything leaves it. Set {_WORDS[role]}_load_threshold = 0.9 and this to 0.2."
        )
    elif threshold > _SHARE_MAX:
        yield f"{key}: {threshold:g} is {threshold:g} times a cache, for it is a share. Set 0.9 or so."
    elif least >= 1.0:
        yield (
            f"{here}.load_balance_threshold: {least:g} is a share of a cache, and two workers are hardly "
            "ever so far apart. Set 0.2 or so."
        )


def _metric(knobs: MigrationKnobs, role: str) -> str:
    decode = role == "decode"
    return knobs.decode_load_metric if decode else knobs.neutral_load_metric


def _thresholds(knobs: MigrationKnobs, role: str) -> float:
    decode = role == "decode"
    return knobs.decode_load_threshold if decode else knobs.neutral_load_threshold


def _thresholds_of_old(role: str) -> tuple[float, float]:
    """Those that are preset, as they are elsewhere."""
    return _thresholds(MigrationKnobs(), role), MigrationKnobs().load_balance_threshold


def _has(model: ModelKnobs, role: str) -> bool:
    """Whether there can be two workers of a role."""
    return sum(pool.replicas_max for pool in model.pools if pool.role == role) > 1
