"""Fleet file of a simulation: engines, start-up times of workers, routing and migration."""

import math
import random
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.scalars import Name, Role
from loadline.errors import ConfigError
from loadline.sim.engine import EngineKnobs, EngineTiming
from loadline.sim.profiles import LinearProfile, MeasuredProfile
from loadline.toml.checking import load_as

PositiveInt = Annotated[int, Meta(ge=1)]
PositiveFloat = Annotated[float, Meta(gt=0)]
NonNegativeFloat = Annotated[float, Meta(ge=0)]


class _FleetFileTable(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all tables of a fleet file; unknown keys are errors."""


class StartDelayKnobs(_FleetFileTable, frozen=True):
    """Time from the start of a worker's process until it can serve."""

    distribution: Annotated[
        Literal["constant", "uniform", "exponential", "lognormal"],
        Meta(description="Distribution of the times; uniform: mean_s plus or minus mean_s * cv * sqrt(3)."),
    ] = "lognormal"
    mean_s: Annotated[NonNegativeFloat, Meta(description="Mean time, in s.")] = 60.0
    cv: Annotated[
        float, Meta(ge=0, le=10, description="Coefficient of variation; not used by constant and exponential.")
    ] = 0.25

    def draw_ms(self, rng: random.Random) -> float:
        """Draw a start delay, in ms."""
        mean_ms = self.mean_s * 1_000.0
        match self.distribution:
            case "uniform":
                half = mean_ms * self.cv * math.sqrt(3.0)
                return max(0.0, rng.uniform(mean_ms - half, mean_ms + half))
            case "exponential":
                return rng.expovariate(1.0) * mean_ms
            case "lognormal":
                sigma = math.sqrt(math.log1p(self.cv * self.cv))
                return mean_ms * math.exp(rng.gauss(0.0, sigma) - sigma * sigma / 2.0)
        return mean_ms


class SimulatedPoolKnobs(_FleetFileTable, frozen=True):
    """Engines of one pool; its role, bounds and GPUs per worker are those of the configuration."""

    name: Annotated[Name, Meta(description="The pool's name in the configuration.")]
    kv_blocks: Annotated[PositiveInt, Meta(description="KV cache blocks of one worker.")]
    prefill_profile: Annotated[
        str, Meta(description="NPZ file of a measured prefill sweep, relative to this file.")
    ] = ""
    decode_profile: Annotated[str, Meta(description="NPZ file of a measured decode sweep, relative to this file.")] = ""
    linear: Annotated[
        LinearProfile | None, Meta(description="alpha, beta, gamma and delta, in place of the profiles.")
    ] = None
    accelerator: Annotated[
        str, Meta(max_length=256, description="Accelerator type that workers report when they register.")
    ] = ""
    block_size_tokens: Annotated[PositiveInt, Meta(description="Tokens in one KV block.")] = 16
    max_batch_requests: Annotated[PositiveInt, Meta(description="Maximum requests that a worker decodes together.")] = (
        256
    )
    max_batched_tokens: Annotated[PositiveInt, Meta(description="Maximum prompt tokens in one prefill pass.")] = 8_192
    chunked_prefill: Annotated[
        bool, Meta(description="Mix chunks of prompts with decode iterations instead of whole passes between them.")
    ] = False
    prefix_cache_blocks: Annotated[
        int, Meta(ge=0, description="Prefix blocks of the trace that a worker caches; 0: no prefix cache.")
    ] = 0
    workers: Annotated[int, Meta(ge=0, le=10_000, description="Workers that are ready when the trace begins.")] = 1
    start_delay: StartDelayKnobs = StartDelayKnobs()


class TransferKnobs(_FleetFileTable, frozen=True):
    """Link over which workers transfer KV cache."""

    bandwidth_gbytes_per_s: Annotated[
        PositiveFloat, Meta(description="Rate of one transfer, in 10^9 bytes per second.")
    ] = 25.0
    latency_ms: Annotated[NonNegativeFloat, Meta(description="Latency added to every transfer.")] = 1.0
    kv_bytes_per_token: Annotated[
        PositiveInt, Meta(description="Size of the KV cache of one token over all layers, in bytes.")
    ] = 131_072


class FleetMigrationKnobs(_FleetFileTable, frozen=True):
    """Migration slots of each worker; without this table engines do not support migration."""

    slots_in: Annotated[
        int, Meta(ge=0, le=1_024, description="Maximum requests that migrate to a worker at a time.")
    ] = 4
    slots_out: Annotated[
        int,
        Meta(
            ge=0, le=1_024, description="Maximum requests that migrate from a worker at a time; more while it drains."
        ),
    ] = 4


class SimulatedFleetKnobs(_FleetFileTable, frozen=True):
    """Root table of a fleet file."""

    pools: Annotated[tuple[SimulatedPoolKnobs, ...], Meta(min_length=1, max_length=64, description="Its pools.")]
    model: Annotated[
        str,
        Meta(
            max_length=100,
            description="The model that the trace is for; may be empty if the configuration has only one.",
        ),
    ] = ""
    ttft_ms: Annotated[
        PositiveFloat | None,
        Meta(description="Objective of the time to first token, in ms; none: that of the configuration."),
    ] = None
    itl_ms: Annotated[
        PositiveFloat | None,
        Meta(
            description="Objective of the mean inter-token latency of a request, in ms; none: that of the "
            "configuration."
        ),
    ] = None
    routing: Annotated[
        Literal["round_robin", "least_loaded", "kv_aware"],
        Meta(
            description="Worker for a request: round_robin: the next in turn; least_loaded: the one with the least "
            "queued prompt tokens; kv_aware: the one with the fewest left to compute after prefix cache hits."
        ),
    ] = "least_loaded"
    report_interval_ms: Annotated[float, Meta(ge=10, description="Time between two load reports.")] = 1_000.0
    transfer: TransferKnobs = TransferKnobs()
    migration: Annotated[
        FleetMigrationKnobs | None,
        Meta(description="Maximum requests that a worker migrates at a time; none: engines do not support migration."),
    ] = None


class SimulatedPool(Struct, frozen=True):
    """Pool with its engine model, ready for a simulation."""

    knobs: SimulatedPoolKnobs
    role: Role
    gpus_per_worker: int
    engine: EngineKnobs
    timing: EngineTiming


def read_fleet(path: Path) -> SimulatedFleetKnobs:
    """Read a fleet file; its relative paths start at its folder.

    Raises:
        ConfigError: The file cannot be read, or one of its values is invalid.
    """
    return load_as(SimulatedFleetKnobs, path, lambda knobs: _finished(knobs, path.parent))


def _finished(knobs: SimulatedFleetKnobs, folder: Path) -> SimulatedFleetKnobs:
    """Return a fleet whose paths start at a folder.

    Raises:
        ConfigError: A pool is there twice, or the timing of its engine is not given once.
    """
    names = [pool.name for pool in knobs.pools]
    for index, pool in enumerate(knobs.pools):
        place = f"pools[{index}]"
        if pool.name in names[:index]:
            raise ConfigError(f"{place}.name", f"is {pool.name!r} a second time", "Give each pool once.")
        measured = bool(pool.prefill_profile and pool.decode_profile)
        if measured == (pool.linear is not None) or bool(pool.prefill_profile) != bool(pool.decode_profile):
            problem = "needs either both profiles or linear parameters"
            raise ConfigError(place, problem, "Write prefill_profile and decode_profile, or a table linear.")
    pools = tuple(
        msgspec.structs.replace(
            pool,
            prefill_profile=str(folder / pool.prefill_profile) if pool.prefill_profile else "",
            decode_profile=str(folder / pool.decode_profile) if pool.decode_profile else "",
        )
        for pool in knobs.pools
    )
    return msgspec.structs.replace(knobs, pools=pools)


def model_of(fleet: SimulatedFleetKnobs, settings: Settings) -> ModelKnobs:
    """Return the model that the trace is for.

    Raises:
        ConfigError: The model does not exist, or the file must name one of several.
    """
    names = [model.name for model in settings.models]
    if fleet.model in names:
        return settings.models[names.index(fleet.model)]
    if not fleet.model and len(names) == 1:
        return settings.models[0]
    problem = f"is {fleet.model!r}, the configuration has {', '.join(names)}"
    raise ConfigError("model of the fleet", problem, "Name one of them.")


def objectives_of(fleet: SimulatedFleetKnobs, model: ModelKnobs) -> ObjectiveKnobs:
    """Return the objectives that requests are measured against: those of the fleet file, else the model's own."""
    configured = model.effective_objectives
    return ObjectiveKnobs(
        configured.ttft_ms if fleet.ttft_ms is None else fleet.ttft_ms,
        configured.itl_ms if fleet.itl_ms is None else fleet.itl_ms,
    )


def pools_of(fleet: SimulatedFleetKnobs, model: ModelKnobs) -> dict[str, SimulatedPool]:
    """Return every pool of the model with its engine model, by name.

    Raises:
        ConfigError: A pool is missing on either side, or its numbers do not fit together.
        DataError: A profile cannot be used.
    """
    described = {pool.name: pool for pool in fleet.pools}
    configured = {pool.name: pool for pool in model.pools}
    for name in sorted(described.keys() ^ configured.keys()):
        where, other = ("fleet", "configuration") if name in configured else ("configuration", "fleet")
        raise ConfigError(f"pool {name}", f"is not in the {where}", f"Describe it there, or drop it from the {other}.")
    roles = {pool.role for pool in model.pools}
    if "encode" in roles:
        problem, remedy = "has encode pools, which are not simulated", "Simulate a configuration without them."
        raise ConfigError(f"model {model.name}", problem, remedy)
    if ("prefill" in roles) != ("decode" in roles):
        has, lacks = ("prefill", "decode") if "prefill" in roles else ("decode", "prefill")
        remedy = f"Add a {lacks} pool, or make it aggregated: no request could finish."
        raise ConfigError(f"pools of model {model.name}", f"are of role {has} and none is of role {lacks}", remedy)
    found: dict[str, SimulatedPool] = {}
    for name, pool in configured.items():
        knobs = described[name]
        try:
            engine = EngineKnobs(
                role=pool.role,
                kv_blocks_total=knobs.kv_blocks,
                block_size_tokens=knobs.block_size_tokens,
                max_batch_requests=knobs.max_batch_requests,
                max_batched_tokens=knobs.max_batched_tokens,
                chunked_prefill=knobs.chunked_prefill,
            )
            timing = _timing(knobs)
        except ValueError as error:
            raise ConfigError(f"fleet, pool {name}", str(error), "Correct it.") from error
        found[name] = SimulatedPool(knobs, pool.role, pool.gpus_per_worker, engine, timing)
    return found


def _timing(knobs: SimulatedPoolKnobs) -> EngineTiming:
    return knobs.linear or MeasuredProfile(Path(knobs.prefill_profile), Path(knobs.decode_profile))
