"""Configuration file of the local scaler: the command of each pool, and time limits."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from loadline.core.vocabulary.scalars import Name, Role
from loadline.errors import ConfigError
from loadline.scalers.config_file import check_unique, read_as
from loadline.servers import NatsKnobs

Positive = Annotated[int, Meta(ge=1)]


class _StrictKnobs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of knobs that reject unknown keys."""


class LocalPoolKnobs(_StrictKnobs, frozen=True):
    """Command and environment of a pool's workers."""

    name: Name
    role: Role
    command: Annotated[
        tuple[str, ...],
        Meta(
            min_length=1,
            description="Program and arguments. Placeholders: {worker} {model} {pool} {role} {incarnation} {slot} "
            "{port} {gpus}.",
        ),
    ]
    env: Annotated[
        dict[str, str], Meta(description="Variables added to the scaler's environment, with the same placeholders.")
    ] = {}
    gpus: Annotated[int, Meta(ge=0, le=4096, description="GPUs of one worker.")] = 1


class LocalModelKnobs(_StrictKnobs, frozen=True):
    """Model and its pools."""

    name: Name
    pools: Annotated[tuple[LocalPoolKnobs, ...], Meta(min_length=1, max_length=64)]


class LocalKnobs(_StrictKnobs, frozen=True):
    """Configuration file of the local scaler."""

    models: Annotated[tuple[LocalModelKnobs, ...], Meta(min_length=1, max_length=1024)]
    nats: NatsKnobs = NatsKnobs()
    root: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]+$", description="Prefix of every NATS subject.")] = "loadline"
    name: Annotated[Name, Meta(description="Name in the answers to decisions.")] = "local"
    gpus: Annotated[
        tuple[Name, ...] | Literal["auto"],
        Meta(
            description='GPUs of this host, each for one worker at a time; "auto" asks nvidia-smi. Empty: not assigned.'
        ),
    ] = ()
    first_port: Annotated[int, Meta(ge=1, le=65_535, description="Lowest of the workers' ports.")] = 8_100
    ports: Annotated[int, Meta(ge=1, le=10_000, description="Number of ports from there on.")] = 100
    log_directory: Annotated[
        str, Meta(description="Folder for one <worker>.log each; empty: the scaler's own output.")
    ] = ""
    lifetimes_file: Annotated[str, Meta(description="JSON Lines file of ended workers; empty: none.")] = ""
    start_concurrency: Annotated[
        Positive, Meta(description="Maximum number of workers of a pool that start at once.")
    ] = 4
    settle_ms: Annotated[Positive, Meta(description="A worker that exits sooner than this failed to start.")] = 1_000
    restart_backoff_ms: Annotated[Positive, Meta(description="Wait after a failed start; doubles each time.")] = 500
    restart_backoff_max_ms: Annotated[Positive, Meta(description="Maximum of this wait.")] = 30_000
    linger_ms: Annotated[Positive, Meta(description="Time for a drained worker to exit by itself.")] = 2_000
    grace_ms: Annotated[int, Meta(ge=1, le=3_600_000, description="Time from SIGTERM to SIGKILL.")] = 5_000


def read(path: Path) -> LocalKnobs:
    """Read a TOML file.

    Raises:
        ConfigError: The file cannot be read or is invalid.
    """
    knobs = read_as(LocalKnobs, path, "docs/reference/clients.md")
    for model in knobs.models:
        check_unique(f"models.{model.name}.pools", "pools", (pool.name for pool in model.pools))
        for pool in model.pools:
            if knobs.gpus not in {(), "auto"} and pool.gpus > len(knobs.gpus):
                problem = f"a worker needs {pool.gpus} GPUs, the host has {len(knobs.gpus)}"
                raise ConfigError(f"models.{model.name}.pools.{pool.name}", problem, "Correct gpus of one of both.")
    check_unique("models", "models", (model.name for model in knobs.models))
    return knobs
