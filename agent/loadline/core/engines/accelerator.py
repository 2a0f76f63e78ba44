"""What a pool's workers run on, and what that costs."""

from typing import Annotated, Final

from msgspec import Meta, Struct

from loadline.core.vocabulary.scalars import Name

_Amount = Annotated[float, Meta(ge=0, le=1e9)]


class AcceleratorKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """An accelerator that pools name: cost and power are those of one unit, as it is rented or racked."""

    name: Annotated[Name, Meta(description="What pools call it.")]
    type: Annotated[
        str,
        Meta(max_length=128, description="GPUs of one type are one supply, however they are arranged; empty: name."),
    ] = ""
    multiplicity: Annotated[int, Meta(ge=1, le=4096, description="GPUs of that type in one unit.")] = 1
    cost_per_hour: Annotated[_Amount, Meta(description="What a unit costs an hour, in any currency.")] = 1.0
    power_w: Annotated[_Amount, Meta(description="What a unit draws under load, in W.")] = 0.0

    def units(self, gpus: int) -> float:
        """Units of so many GPUs."""
        return gpus / self.multiplicity

    @property
    def gpu_type(self) -> str:
        """Of which type its GPUs are: what is short is short of a type."""
        return self.type or self.name


UNNAMED_ACCELERATOR: Final = AcceleratorKnobs("unsaid")
"""That of a pool which names none: a GPU costs 1."""
