"""Names in a configuration: each is there once, and what is named is there."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from math import gcd
from typing import Final

from loadline.config.knobs import Config
from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.state.settings import ModelKnobs
from loadline.errors import ConfigError

_NO_NAMESPACE: Final = "default"
"""Where models are that name none."""


def check_names(config: Config) -> None:
    """Refuse accelerators, namespaces and classes of service that are there twice or are not there.

    Raises:
        ConfigError: One of them.
    """
    accelerators = {one.name: one for one in config.accelerators}
    classes = {one.name for one in config.service_classes}
    refuse_duplicates((one.name for one in config.accelerators), "accelerators", "accelerator")
    refuse_duplicates((one.name for one in config.namespaces), "namespaces", "namespace")
    refuse_duplicates((one.name for one in config.service_classes), "service_classes", "class")
    for index, model in enumerate(config.models):
        _check_accelerators(accelerators, model, f"models[{index}]")
        if model.service_class and model.service_class not in classes:
            place, problem = f"models[{index}].service_class", f"{model.service_class!r} is no class of service"
            remedy = did_you_mean(model.service_class, classes) if classes else "Write a [[service_classes]] of it."
            raise ConfigError(place, problem, remedy)


def name_warnings(config: Config) -> Iterator[str]:
    """Namespaces and classes of service, or parts of them, that no model makes use of; models of no namespace."""
    spaces, names = {model.namespace for model in config.models}, {model.name for model in config.models}
    served = {(model.service_class, model.name) for model in config.models}
    known = {space.name for space in config.namespaces}
    for index, model in enumerate(config.models):
        if known and model.namespace not in known | {_NO_NAMESPACE}:
            yield (
                f"models[{index}].namespace: {model.namespace!r} is none of [[namespaces]], so it has no quota and no "
                f"defaults from there. {did_you_mean(model.namespace, known)}"
            )
    for index, space in enumerate(config.namespaces):
        if space.name not in spaces:
            yield f"namespaces[{index}].name: no model has namespace = {space.name!r}. Write it in one, or take it out."
    for index, service in enumerate(config.service_classes):
        for name in service.models:
            place = f"service_classes[{index}].models.{name}"
            if name not in names:
                yield f"{place}: there is no such model. {did_you_mean(name, names)}"
            elif (service.name, name) not in served:
                yield f"{place}: the model is of another class. Write service_class = {service.name!r} in it."


def refuse_duplicates(names: Iterable[str], place: str, what: str) -> None:
    """Refuse a name that is there more than once.

    Raises:
        ConfigError: It is.
    """
    for name, count in Counter(names).items():
        if count > 1:
            raise ConfigError(place, f"{what} {name!r} is there {count} times", f"Give every {what} its own name.")


def did_you_mean(word: str, known: Collection[str]) -> str:
    """The remedy for a word that is not known: the known one that is like it, or all of them."""
    close = get_close_matches(word, known, n=1)
    return f"Did you mean {close[0]}?" if close else f"Known are: {', '.join(sorted(known))}."


def _check_accelerators(known: dict[str, AcceleratorKnobs], model: ModelKnobs, place: str) -> None:
    for index, pool in enumerate(model.pools):
        if not pool.accelerator:
            continue
        here = f"{place}.pools[{index}].accelerator"
        if pool.accelerator not in known:
            remedy = did_you_mean(pool.accelerator, known) if known else "Write an [[accelerators]] of that name."
            raise ConfigError(here, f"{pool.accelerator!r} is no accelerator", remedy)
        unit = known[pool.accelerator].multiplicity
        if pool.gpus_per_worker % unit:
            problem = f"{pool.accelerator!r} comes in units of {unit} GPUs, and a worker has {pool.gpus_per_worker}"
            remedy = (
                f"Set gpus_per_worker to a multiple of {unit}, or, if workers share a unit, the multiplicity to "
                f"{gcd(unit, pool.gpus_per_worker)} and its costs to match."
            )
            raise ConfigError(here, problem, remedy)
