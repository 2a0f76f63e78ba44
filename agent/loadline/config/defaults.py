"""The layers of a configuration below its models: values of models that do not set them."""

from typing import Annotated

from msgspec import Meta, Struct

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.planning.allocation.supplies import Quota
from loadline.core.vocabulary.scalars import Name


class Layer(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of what has the keys of something else: a reference need not list them again."""


class NamespaceKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """What belongs to one team: its models are those that name it as their `namespace`."""

    name: Annotated[Name, Meta(description="Its name.")]
    gpu_quota: Annotated[
        Quota,
        Meta(
            description="Most GPUs of its models, by type of accelerator: 0 is none, -1 no limit; default is of each"
            " type that is not named."
        ),
    ] = {}


class ServiceClassKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """What is promised to the users of the models that name this class. What is not written here is theirs to say."""

    name: Annotated[Name, Meta(description="Its name.")]
    priority: Annotated[int, Meta(ge=1, le=100, description="Priority of its models: 1 before 100.")] = 100
    objectives: ObjectiveKnobs = ObjectiveKnobs()
    models: Annotated[
        dict[Name, ObjectiveKnobs], Meta(max_length=1_024, description="Objectives of single models, by their names.")
    ] = {}
