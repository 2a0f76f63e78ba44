"""The configuration file of the local scaler: which command starts a worker of each pool, and how patient to be."""

import re
import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from loadline.config import NatsKnobs
from loadline.core.vocabulary.scalars import Name, Role
from loadline.errors import ConfigError

Positive = Annotated[int, Meta(ge=1)]


class _StrictKnobs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An unknown key is an error, not a silent nothing."""


class LocalPoolKnobs(_StrictKnobs, frozen=True):
    """How the workers of a pool are started."""

    name: Name
    role: Role
    command: Annotated[
        tuple[str, ...],
        Meta(
            min_length=1, description="Program, arguments; {worker} {model} {pool} {role} {incarnation} are filled in."
        ),
    ]
    env: Annotated[dict[str, str], Meta(description="Variables added to this process's own environment.")] = {}
    gpus: Annotated[int, Meta(ge=0, le=4096, description="GPUs that one worker occupies, for the lifetimes file.")] = 1


class LocalModelKnobs(_StrictKnobs, frozen=True):
    """A model and its pools."""

    name: Name
    pools: Annotated[tuple[LocalPoolKnobs, ...], Meta(min_length=1, max_length=64)]


class LocalKnobs(_StrictKnobs, frozen=True):
    """A whole configuration file."""

    models: Annotated[tuple[LocalModelKnobs, ...], Meta(min_length=1, max_length=1024)]
    nats: NatsKnobs = NatsKnobs()
    root: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]+$", description="First tokens of every NATS subject.")] = (
        "loadline"
    )
    name: Annotated[Name, Meta(description="Signs the answers to decisions.")] = "local"
    log_directory: Annotated[str, Meta(description="One <worker>.log each; empty: workers write where we do.")] = ""
    lifetimes_file: Annotated[str, Meta(description="JSON lines, one for each worker that ended; empty: none.")] = ""
    start_concurrency: Annotated[Positive, Meta(description="Workers of a pool that may be starting at once.")] = 4
    settle_ms: Annotated[Positive, Meta(description="A worker that ends younger than this failed to start.")] = 1_000
    restart_backoff_ms: Annotated[Positive, Meta(description="Wait after a failed start; doubles.")] = 500
    restart_backoff_max_ms: Annotated[Positive, Meta(description="Longest such wait.")] = 30_000
    linger_ms: Annotated[Positive, Meta(description="A drained worker may take this long to leave by itself.")] = 2_000
    grace_ms: Annotated[int, Meta(ge=1, le=7_000, description="From SIGTERM to SIGKILL.")] = 5_000


def read(path: Path) -> LocalKnobs:
    """Read a TOML file.

    Raises:
        ConfigError: It cannot be read, is no TOML, or something in it cannot be used.
    """
    try:
        raw = tomllib.loads(path.read_text("utf-8"))
        knobs = msgspec.convert(raw, LocalKnobs)
    except OSError as error:
        raise ConfigError(str(path), f"it cannot be read: {error.strerror}", "Name a readable file.") from error
    except msgspec.ValidationError as error:
        place = re.search(r"`\$\.?(.*)`$", str(error))
        problem = str(error).split(" - at ")[0]
        raise ConfigError(
            place[1] if place else str(path), problem, "See docs/reference/clients.md for every key."
        ) from error
    except ValueError as error:
        raise ConfigError(str(path), f"it is no TOML: {error}", "Correct the line that it names.") from error
    for model in knobs.models:
        pools = [pool.name for pool in model.pools]
        if len(set(pools)) < len(pools):
            raise ConfigError(f"models.{model.name}.pools", "two pools have one name", "Give each its own.")
    models = [model.name for model in knobs.models]
    if len(set(models)) < len(models):
        raise ConfigError("models", "two models have one name", "Give each its own.")
    return knobs
