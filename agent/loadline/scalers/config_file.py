"""Configuration files of scalers: TOML, where unknown keys are errors, and what all of them share."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Protocol, TypeVar

from msgspec import Meta

from loadline.core.vocabulary.scalars import Name
from loadline.errors import ConfigError
from loadline.servers import EtcdKnobs, Knobs, NatsKnobs, check_certificate_use, check_logins, check_servers
from loadline.toml.checking import load_as

ScalerName = Annotated[Name, Meta(description="Name in the answers to decisions.")]


class ScalerKnobs(Knobs, frozen=True, kw_only=True):
    """Base of the configuration files; each has a ``name`` too, with a default of its own."""

    nats: NatsKnobs = NatsKnobs()
    root: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]+\Z", description="Prefix of every NATS subject.")] = "loadline"


Shape = TypeVar("Shape", bound=ScalerKnobs)


def read_as(shape: type[Shape], path: Path, finish: Callable[[Shape], Shape]) -> Shape:
    """Read a TOML file; ``finish`` as in ``load_as``.

    Raises:
        ConfigError: The file cannot be read or is invalid.
    """

    def checked(knobs: Shape) -> Shape:
        check_servers(knobs.nats.servers, "nats.servers", ("nats", "tls"))
        check_logins(knobs.nats, EtcdKnobs())
        check_certificate_use(knobs.nats)
        return finish(knobs)

    return load_as(shape, path, checked)


class NamedTable(Protocol):
    """Table of a configuration with a name."""

    @property
    def name(self) -> str:
        """Its name."""
        ...


PoolT_co = TypeVar("PoolT_co", bound=NamedTable, covariant=True)


class ModelTable(NamedTable, Protocol[PoolT_co]):
    """Model of a configuration."""

    @property
    def pools(self) -> Sequence[PoolT_co]:
        """Its pools."""
        ...


def check_names(models: Sequence[ModelTable[NamedTable]]) -> None:
    """Check that the names of models differ, and those of the pools of each.

    Raises:
        ConfigError: Two are the same.
    """
    check_unique("models", "models", (model.name for model in models))
    for index, model in enumerate(models):
        check_unique(f"models[{index}].pools", "pools", (pool.name for pool in model.pools))


def pools_by_place(models: Sequence[ModelTable[PoolT_co]]) -> Iterator[tuple[str, PoolT_co]]:
    """Yield the pools of all models with their places in the file."""
    for index, model in enumerate(models):
        for number, pool in enumerate(model.pools):
            yield f"models[{index}].pools[{number}]", pool


def check_unique(place: str, what: str, names: Iterable[str]) -> None:
    """Check that names differ.

    Raises:
        ConfigError: Two are the same.
    """
    listed = list(names)
    if len(set(listed)) < len(listed):
        raise ConfigError(place, f"two {what} have the same name", "Rename one.")


def selected_models(only: Sequence[str], known: Sequence[str]) -> Sequence[str]:
    """Return the models that ``--model`` names, or all of a configuration without it.

    Raises:
        ConfigError: A model is not configured.
    """
    unknown = sorted(set(only) - set(known))
    if unknown:
        problem = f"the configuration has no model {unknown[0]}"
        raise ConfigError("--model", problem, f"Choose from {', '.join(known)}.")
    return only or known
