"""Validation of names in a configuration: names are unique, and references name a defined table."""

from collections import Counter
from collections.abc import Iterable, Iterator
from math import gcd
from typing import Final

from loadline.config.knobs import Config
from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.state.settings import ModelKnobs
from loadline.errors import ConfigError
from loadline.toml.checking import did_you_mean

_NO_NAMESPACE: Final = "default"
"""Namespace of models that do not set one; it needs no table."""


def name_errors(config: Config) -> Iterator[ConfigError]:
    """Yield errors for accelerators, namespaces and service classes that are defined twice, or not at all."""
    accelerators = {one.name: one for one in config.accelerators}
    classes = {one.name for one in config.service_classes}
    yield from duplicate_errors((one.name for one in config.accelerators), "accelerators", "accelerator")
    yield from duplicate_errors((one.name for one in config.namespaces), "namespaces", "namespace")
    yield from duplicate_errors((one.name for one in config.service_classes), "service_classes", "class")
    for index, model in enumerate(config.models):
        yield from _accelerator_errors(accelerators, model, f"models[{index}]")
        if model.service_class and model.service_class not in classes:
            place, problem = f"models[{index}].service_class", f"{model.service_class!r} is not defined"
            remedy = did_you_mean(model.service_class, classes) if classes else "Add a [[service_classes]] table."
            yield ConfigError(place, problem, remedy)


def name_warnings(config: Config) -> Iterator[str]:
    """Yield warnings about unused namespaces and service classes, and about models in undefined namespaces."""
    used_namespaces, names = {model.namespace for model in config.models}, {model.name for model in config.models}
    served = {(model.service_class, model.name) for model in config.models}
    known = {namespace.name for namespace in config.namespaces}
    for index, model in enumerate(config.models):
        if known and model.namespace not in known | {_NO_NAMESPACE}:
            yield (
                f"models[{index}].namespace: {model.namespace!r} is not defined in [[namespaces]], so it has no quota "
                f"and no defaults. {did_you_mean(model.namespace, known)}"
            )
    for index, namespace in enumerate(config.namespaces):
        if namespace.name not in used_namespaces:
            yield f"namespaces[{index}].name: no model has namespace = {namespace.name!r}. Set it in one, or remove it."
    for index, service in enumerate(config.service_classes):
        for name in service.models:
            place = f"service_classes[{index}].models.{name}"
            if name not in names:
                yield f"{place}: no model has this name. {did_you_mean(name, names)}"
            elif (service.name, name) not in served:
                yield (
                    f"{place}: the model has another service class. Set its service_class = {service.name!r}, or "
                    "remove this table."
                )


def duplicate_errors(names: Iterable[str], place: str, kind: str) -> Iterator[ConfigError]:
    """Yield an error for each name that occurs more than once.

    Args:
        names: Names of all tables.
        place: Place of the tables.
        kind: Kind of the tables, for the error.
    """
    for name, count in Counter(names).items():
        if count > 1:
            yield ConfigError(place, f"{kind} {name!r} is defined {count} times", f"Give every {kind} a unique name.")


def _accelerator_errors(known: dict[str, AcceleratorKnobs], model: ModelKnobs, place: str) -> Iterator[ConfigError]:
    for index, pool in enumerate(model.pools):
        if not pool.accelerator:
            continue
        here = f"{place}.pools[{index}].accelerator"
        if pool.accelerator not in known:
            remedy = did_you_mean(pool.accelerator, known) if known else "Add an [[accelerators]] table of that name."
            yield ConfigError(here, f"{pool.accelerator!r} is not defined", remedy)
            continue
        unit = known[pool.accelerator].multiplicity
        if pool.gpus_per_worker % unit:
            problem = f"{pool.accelerator!r} has units of {unit} GPUs, but a worker takes {pool.gpus_per_worker}"
            remedy = (
                f"Set gpus_per_worker to a multiple of {unit}, or, if workers share a unit, the multiplicity to "
                f"{gcd(unit, pool.gpus_per_worker)} and its costs to match."
            )
            yield ConfigError(here, problem, remedy)
