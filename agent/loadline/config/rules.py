"""Validation of a configuration as a whole: contradictions are errors, implausible settings are warnings."""

from collections.abc import Callable, Iterator
from typing import Final

from loadline.config.budgets import budget_errors, budget_warnings, fleet_budget_errors, fleet_budget_warnings
from loadline.config.gpu_limits import gpu_limit_errors, schedule_limit_warnings, unlimited_pool_warnings
from loadline.config.knobs import Config
from loadline.config.layers import sources_of
from loadline.config.migration_checks import migration_errors, migration_only_warnings, migration_warnings
from loadline.config.names import duplicate_errors, name_errors, name_warnings
from loadline.config.plausible import profile_warnings
from loadline.config.plugins import plugin_warnings, unknown_planner
from loadline.config.scale_to_zero import scale_to_zero_errors, scale_to_zero_warnings
from loadline.config.schedules import schedule_errors, schedule_warnings
from loadline.config.units import unit_warnings
from loadline.config.unused_knobs import unused_knob_warnings
from loadline.core.planning.planner import Finding, KnobProblem, KnobWarning
from loadline.core.planning.planners import PLANNERS
from loadline.core.state.settings import ModelKnobs
from loadline.errors import ConfigError
from loadline.servers import check_certificate_use, check_logins, check_servers, is_loopback, is_loopback_host

_TAKEOVER_MS: Final = 2_000
"""Time after the TTL of a lease within which a standby should take over; longer campaign intervals exceed it."""
_HOUR_MS: Final = 3_600_000
_DRAIN_SLACK_MS: Final = 60_000
"""Time of a decision in addition to its drain: for announcement, the report of the drained worker, and its removal."""


def validate(config: Config) -> list[str]:
    """Validate a configuration as a whole.

    Returns:
        Warnings about settings without effect or with implausible values, one per item.

    Raises:
        ConfigError: Values contradict each other, or refer to undefined names; it names all of them.
    """
    sources = sources_of(config)
    ConfigError.raise_all(map(sources.located, _errors(config)))
    parts = (warning.partition(": ") for warning in _warnings(config))
    return [f"{sources.shown_place(place)}{colon}{text}" for place, colon, text in parts]


def _errors(config: Config) -> Iterator[ConfigError]:
    """Yield the errors of all sections and models, with places in the merged configuration."""
    yield from _agent_errors(config)
    yield from _raised(check_servers, config.nats.servers, "nats.servers", ("nats", "tls"))
    yield from _raised(check_servers, config.etcd.endpoints, "etcd.endpoints", ("http", "https"))
    yield from _raised(check_logins, config.nats, config.etcd)
    yield from _raised(check_certificate_use, config.nats)
    yield from _sharing_errors(config)
    yield from _time_errors(config)
    yield from duplicate_errors((model.name for model in config.models), "models", "model")
    yield from name_errors(config)
    for index, model in enumerate(config.models):
        place = f"models[{index}]"
        yield from _model_errors(model, place)
        yield from migration_errors(model, place)
        findings = _planner_findings(config, model, place) if model.planner in PLANNERS else ()
        yield from (ConfigError(one.place, one.problem, one.remedy) for one in findings if isinstance(one, KnobProblem))
    yield from fleet_budget_errors(config.fleet, config.models)
    yield from gpu_limit_errors(config)


def _raised(check: Callable[..., None], *arguments: object) -> Iterator[ConfigError]:
    """Yield the error that a check raises."""
    try:
        check(*arguments)
    except ConfigError as error:
        yield error


def _warnings(config: Config) -> list[str]:
    """Return the warnings of a configuration without errors, with places in the merged configuration."""
    warnings = [*plugin_warnings(), *_agent_warnings(config), *name_warnings(config), *migration_only_warnings(config)]
    scaling = [*_decision_warnings(config), *fleet_budget_warnings(config.fleet, config.models)]
    for index, model in enumerate(config.models):
        place = f"models[{index}]"
        warnings += migration_warnings(model, place)
        scaling += [*_model_warnings(model, place), *unused_knob_warnings(model, place)]
        scaling += _planner_warnings(config, model, place)
    scaling += unit_warnings(config)
    scaling += [*unlimited_pool_warnings(config), *schedule_limit_warnings(config)]
    # Warnings about scaling do not apply to an agent that only migrates.
    return warnings if config.agent.only else [*warnings, *scaling]


def _planner_findings(config: Config, model: ModelKnobs, place: str) -> Iterator[Finding]:
    kind = PLANNERS[model.planner]
    return kind.check(model.knobs, model.for_planner(config.fleet), f"{place}.{model.planner}")


def _planner_warnings(config: Config, model: ModelKnobs, place: str) -> Iterator[str]:
    for finding in _planner_findings(config, model, place):
        if isinstance(finding, KnobWarning):
            yield f"{finding.place}: {finding.text}"
    yield from profile_warnings(model, place)


def _agent_errors(config: Config) -> Iterator[ConfigError]:
    if not all(config.agent.root.split(".")):
        yield ConfigError("agent.root", f"{config.agent.root!r} has an empty token", "Separate tokens by single dots.")
    if config.nats.inbox_prefix == config.agent.root.partition(".")[0]:
        problem = f"{config.nats.inbox_prefix!r} is the first token of agent.root, where no replies are sent"
        yield ConfigError("nats.inbox_prefix", problem, "Choose another prefix, such as _INBOX_agent.")


def _sharing_errors(config: Config) -> Iterator[ConfigError]:
    if config.sharing.shards > 1 and config.agent.only:
        problem = f"{config.sharing.shards} does not apply to an agent that only migrates"
        yield ConfigError("sharing.shards", problem, "Remove it, or remove agent.only.")


def _time_errors(config: Config) -> Iterator[ConfigError]:
    ttl_ms, margin_ms = config.leadership.lease_ttl_s * 1000, config.leadership.margin_ms
    if margin_ms >= ttl_ms:
        problem = f"{margin_ms} ms is not below the lease TTL of {ttl_ms} ms, so no agent could lead"
        yield ConfigError("leadership.margin_ms", problem, "Set it to a fifth of lease_ttl_s, or raise lease_ttl_s.")
    for section, low, low_value, high, high_value in (
        ("journal", "segment_bytes_max", config.journal.segment_bytes_max, "bytes_max", config.journal.bytes_max),
        (
            "decisions",
            "announce_interval_ms",
            config.decisions.announce_interval_ms,
            "announce_interval_max_ms",
            config.decisions.announce_interval_max_ms,
        ),
        (
            "decisions",
            "retry_backoff_ms",
            config.decisions.retry_backoff_ms,
            "retry_backoff_max_ms",
            config.decisions.retry_backoff_max_ms,
        ),
    ):
        if low_value > high_value:
            yield ConfigError(
                f"{section}.{low}", f"{low_value} is above {high} {high_value}", f"Lower it or raise {high}."
            )


def _model_errors(model: ModelKnobs, place: str) -> Iterator[ConfigError]:
    yield from duplicate_errors((pool.name for pool in model.pools), f"{place}.pools", "pool")
    if model.planner not in PLANNERS:
        yield ConfigError(f"{place}.planner", *unknown_planner(model.planner))
    elif model.load_predictor_warmup_trace and not PLANNERS[model.planner].needs.history:
        problem = f"is set, but the {model.planner} planner does not forecast"
        forecasting = (name for name, kind in PLANNERS.items() if kind.needs.history)
        remedy = f"Remove it, or set planner to one of {', '.join(sorted(forecasting))}."
        yield ConfigError(f"{place}.load_predictor_warmup_trace", problem, remedy)
    for index, pool in enumerate(model.pools):
        if pool.replicas_min > pool.replicas_max:
            problem = f"{pool.replicas_min} is above replicas_max {pool.replicas_max}"
            yield ConfigError(f"{place}.pools[{index}].replicas_min", problem, "Lower it or raise replicas_max.")
    roles = {pool.role for pool in model.pools} - {"encode"}
    if not roles:
        yield ConfigError(f"{place}.pools", "has encode pools only", "Add the pools that compute prompts and tokens.")
    if "aggregated" in roles and len(roles) > 1:
        problem = f"mixes aggregated with {' and '.join(sorted(roles - {'aggregated'}))}"
        yield ConfigError(f"{place}.pools", problem, "Make all pools aggregated, or use prefill and decode only.")
    if roles == {"prefill"}:
        yield ConfigError(f"{place}.pools", "has prefill but no decode", 'Add a pool with role = "decode".')
    yield from budget_errors(model, place)
    yield from scale_to_zero_errors(model, place)
    yield from schedule_errors(model, place)


def _sharing_warnings(config: Config) -> Iterator[str]:
    """Yield a warning if a budget over all models leaves nothing to share."""
    limited = config.fleet.gpu_budget_max is not None or config.fleet.gpu_budget_min
    if config.sharing.shards > 1 and limited and len(config.models) > 1:
        key = "gpu_budget_max" if config.fleet.gpu_budget_max is not None else "gpu_budget_min"
        yield (
            f"sharing.shards: has no effect with fleet.{key}, which one agent decides for all models. "
            "Remove it, or divide the budget among the models."
        )


def _agent_warnings(config: Config) -> Iterator[str]:
    if config.http.port and not is_loopback_host(config.http.host):
        page = "" if config.http.token_file else ", and the live page to nobody until token_file is set"
        yield (
            f"http.host: {config.http.host} shows metrics and probes to other machines without a login{page}. "
            "Set 127.0.0.1, or restrict access by a firewall."
        )
    if config.nats.user and any(url.startswith("nats://") and not is_loopback(url) for url in config.nats.servers):
        yield "nats.servers: the password is sent over the network unencrypted. Use tls://."
    if config.etcd.user and any(url.startswith("http://") and not is_loopback(url) for url in config.etcd.endpoints):
        yield "etcd.endpoints: the password is sent over the network unencrypted. Use https://."
    yield from _sharing_warnings(config)
    if config.leadership.retry_ms > _TAKEOVER_MS:
        yield (
            f"leadership.retry_ms: a takeover may be delayed by {config.leadership.retry_ms} ms. "
            f"Set {_TAKEOVER_MS} or less."
        )
    leading_ms = config.leadership.lease_ttl_s * 1000 - config.leadership.margin_ms
    if config.etcd.timeout_ms >= leading_ms:
        yield (
            f"etcd.timeout_ms: one call of {config.etcd.timeout_ms} ms may take longer than the leader trusts its "
            f"lease, {leading_ms} ms. Lower it or raise leadership.lease_ttl_s."
        )
    if config.runtime.batch_max > config.runtime.inbox_frames_max:
        yield (
            f"runtime.batch_max: {config.runtime.batch_max} is above inbox_frames_max "
            f"{config.runtime.inbox_frames_max}, so no turn takes so many frames. Lower it or raise inbox_frames_max."
        )


def _decision_warnings(config: Config) -> Iterator[str]:
    needed_ms = config.drain.ttl_ms + _DRAIN_SLACK_MS
    if config.decisions.ttl_ms <= needed_ms:
        yield (
            f"decisions.ttl_ms: {config.decisions.ttl_ms} ms is less than drain.ttl_ms {config.drain.ttl_ms} ms plus "
            f"one minute, so a decision may expire before its drain does. Set it above {needed_ms}."
        )


def _model_warnings(model: ModelKnobs, place: str) -> Iterator[str]:
    if all(pool.replicas_min == pool.replicas_max for pool in model.pools):
        yield (
            f"{place}.pools: replicas_min equals replicas_max in every pool, so no count can change. "
            "Raise a replicas_max, or set no_operation = true to get recommendations only."
        )
    else:
        yield from budget_warnings(model, place)
    if {pool.role for pool in model.pools} - {"encode"} == {"decode"}:
        yield f'{place}.pools: decode without prefill. Use role = "aggregated" if these workers also prefill.'
    yield from scale_to_zero_warnings(model, place)
    yield from schedule_warnings(model, place)
    if model.effective_guardrails.stabilisation_ms > _HOUR_MS:
        yield (
            f"{place}.guardrails.stabilisation_ms: one high recommendation delays a scale-down by "
            f"{model.effective_guardrails.stabilisation_ms / _HOUR_MS:g} hours. Set 300000 (5 minutes)."
        )
