"""Layers of a configuration, which provide values for models that do not set them."""

from typing import Annotated

from msgspec import Meta, Struct

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.planning.allocation.supplies import Quota
from loadline.core.vocabulary.scalars import Name


class Layer(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of layers, which repeat the keys of other Structs; the reference lists keys once."""


class NamespaceKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Team that owns the models with its name as their `namespace`."""

    name: Annotated[Name, Meta(description="Name that models refer to.")]
    gpu_quota: Annotated[
        Quota,
        Meta(
            description="GPU limit of its models by accelerator type: 0 allows none, -1 is unlimited; default applies"
            " to types that are not listed."
        ),
    ] = {}


class ServiceClassKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Priority and objectives of the models with its name as their `service_class`."""

    name: Annotated[Name, Meta(description="Name that models refer to.")]
    priority: Annotated[int, Meta(ge=1, le=100, description="Priority of its models, from 1 (highest) to 100.")] = 100
    objectives: ObjectiveKnobs = ObjectiveKnobs()
    models: Annotated[
        dict[Name, ObjectiveKnobs], Meta(max_length=1_024, description="Objectives of single models by name.")
    ] = {}
