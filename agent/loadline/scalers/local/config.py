"""Configuration file of the local scaler: the command of each pool, and time limits."""

from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

from msgspec import Meta
from msgspec.structs import replace

from loadline.core.vocabulary.scalars import Name, Role
from loadline.errors import ConfigError
from loadline.scalers.config_file import ScalerKnobs, ScalerName, check_names, pools_by_place, read_as
from loadline.servers import Knobs, PathText

GRACE_MS: Final = 5_000
SIDECAR_GRACE_MS: Final = 70_000
"""Time that a sidecar takes after SIGTERM: 30 s for the requests, 30 s for the engine, 10 s for its reports."""

RESTART_RESET_MS: Final = 600_000
"""Age at which an exit is no failed start any more, as of containers in Kubernetes."""

Positive = Annotated[int, Meta(ge=1)]


class LocalPoolKnobs(Knobs, frozen=True):
    """Command and environment of a pool's workers."""

    name: Name
    role: Role
    command: Annotated[
        tuple[PathText, ...],
        Meta(
            min_length=1,
            description="Program and arguments. Placeholders: {worker} or {name}, {model} {pool} {role} "
            "{incarnation} {slot} {port} {gpus}.",
        ),
    ]
    env: Annotated[
        dict[str, PathText],
        Meta(description="Variables added to the scaler's environment, with the same placeholders."),
    ] = {}  # noqa: RUF012 - msgspec copies an empty default
    gpus: Annotated[int, Meta(ge=0, le=4096, description="GPUs of one worker.")] = 1
    sidecar: Annotated[
        bool, Meta(description="Start each command in a sidecar, which registers it at http://127.0.0.1:{port}.")
    ] = False


class LocalModelKnobs(Knobs, frozen=True):
    """Model and its pools."""

    name: Name
    pools: Annotated[tuple[LocalPoolKnobs, ...], Meta(min_length=1, max_length=64)]


class LocalKnobs(ScalerKnobs, frozen=True):
    """Configuration file of the local scaler."""

    models: Annotated[tuple[LocalModelKnobs, ...], Meta(min_length=1, max_length=1024)]
    name: ScalerName = "local"
    gpus: Annotated[
        tuple[Name, ...] | Literal["auto"],
        Meta(
            description='GPUs of this host, each for one worker at a time; "auto" asks nvidia-smi. Empty: not assigned.'
        ),
    ] = ()
    advertise_host: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9.-]*$",
            max_length=253,
            description="Name or IPv4 address of this host, at which routers and gateways of others reach its engines "
            "with sidecars; empty: 127.0.0.1.",
        ),
    ] = ""
    first_port: Annotated[int, Meta(ge=1, le=65_535, description="Lowest of the workers' ports.")] = 8_100
    ports: Annotated[int, Meta(ge=1, le=10_000, description="Number of ports from there on.")] = 100
    avoid_used_gpus: Annotated[
        bool, Meta(description="Give no worker a GPU on which nvidia-smi, where it is, shows a process of others.")
    ] = True
    state_file: Annotated[
        PathText,
        Meta(
            description="File of the running workers, which outlive the scaler and are found again by its successor; "
            "empty: they end with it."
        ),
    ] = ""
    on_stop: Annotated[
        Literal["end", "leave"],
        Meta(description="Effect of SIGTERM on the workers: it ends them, or leaves them; leave needs state_file."),
    ] = "end"
    sidecar_config: Annotated[
        PathText,
        Meta(description="File with [nats], [etcd] and [agent] for sidecars; empty: the first server of this one."),
    ] = ""
    log_directory: Annotated[
        PathText,
        Meta(
            description="Folder for one <worker>.log each, of which the last 20 of each pool's ended workers are kept. "
            "Above 16 MiB it begins anew, and <worker>.log.1 has what came before. Empty: the scaler's own output."
        ),
    ] = ""
    lifetimes_file: Annotated[PathText, Meta(description="JSON Lines file of ended workers; empty: none.")] = ""
    start_concurrency: Annotated[
        Positive, Meta(description="Maximum number of workers of a pool that start at once.")
    ] = 4
    settle_ms: Annotated[Positive, Meta(description="Age below which a worker counts as starting.")] = 1_000
    restart_backoff_ms: Annotated[
        Positive, Meta(description="Wait after a worker exits within 10 min; doubles each time.")
    ] = 500
    restart_backoff_max_ms: Annotated[Positive, Meta(description="Maximum of this wait.")] = 30_000
    linger_ms: Annotated[Positive, Meta(description="Time for a drained worker to exit by itself.")] = 2_000
    grace_ms: Annotated[
        Annotated[int, Meta(ge=1, le=3_600_000)] | None,
        Meta(description="Time from SIGTERM to SIGKILL; default: 70 s if a pool has sidecars, otherwise 5 s."),
    ] = None

    @property
    def sigterm_grace_ms(self) -> int:
        """Time from SIGTERM to SIGKILL, as configured or by default."""
        if self.grace_ms is not None:
            return self.grace_ms
        return SIDECAR_GRACE_MS if any(pool.sidecar for model in self.models for pool in model.pools) else GRACE_MS


Checked = TypeVar("Checked", bound=LocalKnobs)


def read(path: Path, *, sidecar: bool = False) -> LocalKnobs:
    """Read a TOML file.

    Args:
        path: Path of the file.
        sidecar: True if the workers of every pool get a sidecar.

    Raises:
        ConfigError: The file cannot be read or is invalid.
    """
    return read_as(LocalKnobs, path, lambda knobs: checked(relative_to(path, knobs), sidecar=sidecar))


def relative_to(path: Path, knobs: Checked) -> Checked:
    """Return a configuration whose files are relative to its own file, wherever the scaler is started."""
    files = ("state_file", "log_directory", "lifetimes_file", "sidecar_config")
    named = {name: getattr(knobs, name) for name in files if getattr(knobs, name)}
    return replace(knobs, **{name: str(path.absolute().parent / value) for name, value in named.items()})


def checked(knobs: Checked, *, sidecar: bool) -> Checked:
    """Return a configuration with ``sidecar`` applied.

    Raises:
        ConfigError: Its values contradict each other.
    """
    if sidecar:
        models = tuple(
            replace(model, pools=tuple(replace(pool, sidecar=True) for pool in model.pools)) for model in knobs.models
        )
        knobs = replace(knobs, models=models)
    _check(knobs)
    return knobs


def _check(knobs: LocalKnobs) -> None:
    if knobs.on_stop == "leave" and not knobs.state_file:
        remedy = "Set state_file too: without it nothing would find the workers again."
        raise ConfigError("on_stop", "leave has no effect without a state file", remedy)
    if knobs.log_directory and Path(knobs.log_directory).is_file():
        raise ConfigError("log_directory", f"{knobs.log_directory} is a file", "Name a folder; it is created.")
    check_names(knobs.models)
    for place, pool in pools_by_place(knobs.models):
        _check_pool(knobs, pool, place)


def _check_pool(knobs: LocalKnobs, pool: LocalPoolKnobs, place: str) -> None:
    for name in pool.env:
        if "=" in name or "\0" in name:
            raise ConfigError(f"{place}.env", f"{name!r} is no name of a variable", "Write one without = and NUL.")
    if knobs.gpus not in {(), "auto"} and pool.gpus > len(knobs.gpus):
        problem = f"a worker needs {pool.gpus} GPUs, the host has {len(knobs.gpus)}"
        raise ConfigError(place, problem, "Correct gpus of one of both.")
    if pool.sidecar and knobs.sigterm_grace_ms < SIDECAR_GRACE_MS:
        problem = f"a sidecar is killed {knobs.sigterm_grace_ms} ms after SIGTERM, before its engine is empty"
        raise ConfigError(place, problem, f"Set grace_ms = {SIDECAR_GRACE_MS}, or more, or leave it out.")
