"""Reading of the engine profiles of a configuration. An unusable profile affects the pools of its model only."""

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from msgspec.structs import replace

from loadline.config.knobs import Config
from loadline.config.tpot_profiles import read_tpot
from loadline.core.engines.profile import EngineProfile, LinearKnobs
from loadline.core.engines.tpot import TpotSweep
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.state.settings import ModelKnobs
from loadline.errors import DataError
from loadline.profile_files import read_decode, read_prefill

_NEEDED: Final = {
    "prefill": ("prefill_profile",),
    "decode": ("decode_profile",),
    "aggregated": ("prefill_profile", "decode_profile"),
    "encode": (),
}
"""Required profile keys by role."""

Sweep = TypeVar("Sweep")


def resolve_paths(config: Config, folder: Path) -> Config:
    """Resolve the paths of profiles and traces against the folder of the configuration file."""
    return replace(config, models=tuple(_located(model, folder) for model in config.models))


def _located(model: ModelKnobs, folder: Path) -> ModelKnobs:
    def full(path: str) -> str:
        return str(folder / path) if path else ""

    pools = tuple(
        replace(pool, prefill_profile=full(pool.prefill_profile), decode_profile=full(pool.decode_profile))
        for pool in model.pools
    )
    migration = replace(model.migration, tpot_profiling_data_path=full(model.migration.tpot_profiling_data_path))
    trace = full(model.load_predictor_warmup_trace)
    return replace(model, pools=pools, migration=migration, load_predictor_warmup_trace=trace)


def read_tpots(config: Config) -> dict[str, TpotSweep]:
    """Read the profiles of times per output token by model, for models that migrate and have one.

    Raises:
        DataError: A file cannot be read, or its values are invalid.
    """
    named = ((index, model.name, model.migration) for index, model in enumerate(config.models))
    return {
        name: _read_tpot(knobs.tpot_profiling_data_path, f"models[{index}].migration.tpot_profiling_data_path")
        for index, name, knobs in named
        if knobs.enabled and knobs.tpot_profiling_data_path
    }


def _read_tpot(path: str, place: str) -> TpotSweep:
    try:
        return read_tpot(Path(path))
    except DataError as error:
        raise DataError(f"{place}: {error}") from error


def read_engines(config: Config) -> dict[str, dict[str, EngineProfile]]:
    """Read engine profiles by model and pool; an unusable one has a ``problem``."""
    found = {model.name: {pool.name: read_engine(pool) for pool in model.pools} for model in config.models}
    return {model: pools for model, pools in found.items() if any(one != EngineProfile() for one in pools.values())}


def read_engine(pool: PoolKnobs) -> EngineProfile:
    """Read the engine profile of a pool; return an empty one if none is configured."""
    files = [key for key in ("prefill_profile", "decode_profile") if getattr(pool, key)]
    if pool.linear is not None:
        return _linear(pool.linear, files)
    if not files:
        return EngineProfile()
    problems: list[str] = []
    prefill = _sweep("prefill_profile", pool.prefill_profile, read_prefill, problems)
    decode = _sweep("decode_profile", pool.decode_profile, read_decode, problems)
    missing = [key for key in _NEEDED[pool.role] if key not in files]
    problems += [f"{key}: is missing. Set it to the results of the profiler." for key in missing]
    if problems:
        return EngineProfile(problem=" ".join(problems))
    return EngineProfile(prefill=prefill, decode=decode)


def _linear(knobs: LinearKnobs, files: list[str]) -> EngineProfile:
    if files:
        return EngineProfile(problem=f"{files[0]}: linear is set too. Remove one of them.")
    try:
        knobs.times()
    except ValueError as error:
        return EngineProfile(problem=f"linear: {error}.")
    return EngineProfile(linear=knobs)


def _sweep(key: str, path: str, read: Callable[[Path], Sweep], problems: list[str]) -> Sweep | None:
    """Read a sweep; None if none is configured, or if it is unusable, which is added to the problems."""
    try:
        return read(Path(path)) if path else None
    except (DataError, ValueError) as error:
        problems.append(f"{key}: {error}")
        return None
