"""Accelerators: type, cost and power of the units that workers run on."""

from typing import Annotated, Final

from msgspec import Meta, Struct

from loadline.core.vocabulary.scalars import Name

_Amount = Annotated[float, Meta(ge=0, le=1e9)]


class AcceleratorKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Accelerator that pools refer to; cost and power are per unit, as rented or installed."""

    name: Annotated[Name, Meta(description="Name that pools refer to.")]
    type: Annotated[
        str,
        Meta(max_length=128, description="GPU type; all GPUs of a type form one supply. Empty: the name."),
    ] = ""
    multiplicity: Annotated[int, Meta(ge=1, le=4096, description="GPUs in one unit.")] = 1
    cost_per_hour: Annotated[_Amount, Meta(description="Cost of a unit per hour, in any currency.")] = 1.0
    power_w: Annotated[_Amount, Meta(description="Power draw of a unit under load, in W.")] = 0.0

    def units(self, gpus: int) -> float:
        """Return the number of units, possibly fractional, that hold ``gpus`` GPUs."""
        return gpus / self.multiplicity

    @property
    def gpu_type(self) -> str:
        """Type of its GPUs, which identifies the supply."""
        return self.type or self.name


UNNAMED_ACCELERATOR: Final = AcceleratorKnobs("unsaid")
"""Accelerator of a pool that names none; a GPU costs 1 per hour."""
