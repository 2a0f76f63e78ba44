"""The layers of a configuration below its models: what models have that do not say otherwise."""

from typing import TYPE_CHECKING, Annotated, Final

from msgspec import NODEFAULT, Meta, Struct, defstruct
from msgspec.structs import fields

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.allocation.supplies import Quota
from loadline.core.state.settings import ModelKnobs
from loadline.core.vocabulary.scalars import Name

_POOL: Final = "Any key of a `[[models.pools]]` but `name` and `role`: of all pools, of whatever role."
_MODEL: Final = (
    "Any key and any section of a `[[models]]` but `name` and `pools`; its section `pool` has any key of a"
    " `[[models.pools]]` but `name` and `role`. A model or a pool that says otherwise wins, key by key."
)


class Layer(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of what has the keys of something else: a reference need not list them again."""


if TYPE_CHECKING:  # their keys are those of the knobs, whatever these are

    class PoolDefaults(Layer, frozen=True):
        """Keys of a pool."""

    class DefaultKnobs(Layer, frozen=True):
        """Keys of a model, and of its pools."""

else:

    def _optional(kind: type[Struct], *without: str) -> list[tuple[str, type, object]]:
        """The fields of a Struct that have defaults, but for those that are named."""
        return [
            (one.name, one.type, one.default if one.default is not NODEFAULT else one.default_factory())
            for one in fields(kind)
            if one.name not in without
        ]

    PoolDefaults = defstruct(
        "PoolDefaults", _optional(PoolKnobs, "name", "role"), bases=(Layer,), namespace={"__doc__": _POOL}, frozen=True
    )
    DefaultKnobs = defstruct(
        "DefaultKnobs",
        [("pool", PoolDefaults, PoolDefaults()), *_optional(ModelKnobs, "name", "pools")],
        bases=(Layer,),
        namespace={"__doc__": _MODEL},
        frozen=True,
    )


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
    defaults: DefaultKnobs = DefaultKnobs()


class ServiceClassKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """What is promised to the users of the models that name this class. What is not written here is theirs to say."""

    name: Annotated[Name, Meta(description="Its name.")]
    priority: Annotated[int, Meta(ge=1, le=100, description="Priority of its models: 1 before 100.")] = 100
    objectives: ObjectiveKnobs = ObjectiveKnobs()
    models: Annotated[
        dict[Name, ObjectiveKnobs], Meta(max_length=1_024, description="Objectives of single models, by their names.")
    ] = {}
