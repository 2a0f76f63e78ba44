"""Conversion of a configuration to the core's settings."""

import os
import socket
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from loadline.config import Config, read_engines, read_tpots, read_zones
from loadline.core.planning.planners import PLANNERS
from loadline.core.state.settings import ModelKnobs, Settings, Sharing
from loadline.core.vocabulary.forecasts import DAY_MS, History
from loadline.errors import DataError
from loadline.traces.warmup import read_warmup
from loadline.wire.keys import LEADER_SCOPE_ALL

_MS: Final = 1_000.0
_DIGEST_CHARS: Final = 12
_WITHOUT_NUMPY: Final = frozenset({"apa", "hpa", "keda", "kpa", "saturation", "static", "threshold"})
"""Planners that never compute with numpy. The others do once they know enough, and those of other packages may."""


def agent_name(config: Config) -> str:
    """Return the configured name, or host and process id, which is unique among running agents."""
    return config.agent.name or f"{socket.gethostname()}-{os.getpid()}"


def settings(config: Config) -> Settings:
    """Return the core's settings, and load numpy if the core may compute with it.

    Raises:
        DataError: A warm-up trace or a TPOT profile cannot be used.
    """
    if any(model.planner not in _WITHOUT_NUMPY or model.migration.enabled for model in config.models):
        np.zeros(0)  # the first use, which takes 60 ms: a turn would stop for it
    converted = Settings(
        agent=agent_name(config),
        scope=config.agent.only or LEADER_SCOPE_ALL,
        models=config.models,
        fleet=config.fleet,
        leadership=config.leadership,
        decisions=config.decisions,
        drain=config.drain,
        accelerators=config.accelerators,
        allocation=config.allocation,
        quotas={one.name: one.gpu_quota for one in config.namespaces if one.gpu_quota},
        profiles=read_engines(config),
        zones=read_zones(config),
        tpot_profiles=read_tpots(config),
        only_migration=config.agent.only == "migration",
        sharing=Sharing(config.sharing.shards),
        histories={model.name: _history(model) for model in config.models if model.load_predictor_warmup_trace},
    )
    digest = sha256(msgspec.json.encode(replace(converted, agent=""))).hexdigest()
    return replace(converted, digest=digest[:_DIGEST_CHARS])


def _history(model: ModelKnobs) -> History:
    """Return a model's load history from its warm-up trace, in the intervals of its planner."""
    knobs = PLANNERS[model.planner].traffic_knobs(model.knobs)
    assert knobs is not None  # noqa: S101 - validated: such a trace is for planners that forecast
    interval_s, path = knobs.throughput_adjustment_interval_ms / _MS, Path(model.load_predictor_warmup_trace)
    place = f"load_predictor_warmup_trace of model {model.name}"
    try:
        history = read_warmup(path, interval_s, knobs.busiest_ms / _MS)
    except DataError as error:
        raise DataError(f"{place}: {error}") from error
    known = sum(value is not None for value in history.requests.values)
    if known < knobs.forecast.min_points:
        problem = f"{path} has {known} whole intervals of {interval_s:g} s, and a forecast needs min_points"
        remedy = "Name a longer trace, or shorten throughput_adjustment_interval_ms."
        raise DataError(f"{place}: {problem}, {knobs.forecast.min_points}. {remedy}")
    if not model.load_predictor_warmup_end:
        return history
    day, kept = DAY_MS // knobs.throughput_adjustment_interval_ms, len(history.requests.values)
    if kept < day:
        problem = f"{path} has {kept} intervals of {interval_s:g} s that are used, and a day has {day}"
        remedy = "Name a trace of a day or more, lengthen the interval, or leave load_predictor_warmup_end out."
        raise DataError(f"{place}: {problem}. {remedy}")
    hours, minutes = map(int, model.load_predictor_warmup_end.split(":"))
    return replace(history, ends_at_ms=(hours * 60 + minutes) * 60_000)
