"""What a trace is once it has been read, and how much of it is wanted."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from loadline.config.file import accepted_values, fields_of
from loadline.errors import ConfigError

REQUESTS_MAX = 5_000_000  # 1 GB of arrivals, and more than a simulation gets through in ten minutes
BLOCKS_MAX = 20_000_000  # ids of prefix blocks, 0.7 GB; the published conversations name 0.3 million
TOKENS_MAX = 1_000_000  # the longest published prompt has 0.9 million
TIME_S_MAX = 366 * 86_400.0  # a year; more is a date and not a time since the start
SCALE_MAX = 1_000.0
PREFIX_BLOCK_TOKENS = 512  # the block of the published traces that name blocks

_Time = Annotated[float, Meta(ge=0, le=TIME_S_MAX)]
_Tokens = Annotated[int, Meta(ge=1, le=TOKENS_MAX)]


class Arrival(Struct, frozen=True, order=True, gc=False):
    """One request of a trace."""

    arrival_s: float
    """Since the start of the trace."""
    isl_tokens: int
    osl_tokens: int
    prefix: tuple[int, ...] = ()
    """Ids of the prompt's leading blocks, where the trace names them; all have ``PREFIX_BLOCK_TOKENS`` but the last."""
    hit_tokens: int = 0
    """Prompt tokens that the trace says had been seen before, where it says no more than that; at most the ISL."""


class Trace(Struct):
    """Arrivals in the order of their time."""

    name: str
    arrivals: list[Arrival]
    duration_s: float
    """Length of the window that was asked for, or up to the end of the data: the last arrival or the last bin."""


class RateKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """How much of a trace is taken, and how a series of rates becomes requests."""

    start_s: Annotated[_Time, Meta(description="Where in the trace to begin; times then count from there.")] = 0.0
    duration_s: Annotated[
        Annotated[float, Meta(gt=0, le=TIME_S_MAX)] | None,
        Meta(description="How much of the trace to take; unset: to its end."),
    ] = None
    scale: Annotated[
        float,
        Meta(
            gt=0,
            le=SCALE_MAX,
            description="Load against the trace's: below 1 requests are left out, above 1 jittered copies are added.",
        ),
    ] = 1.0
    process: Annotated[
        Literal["poisson", "gamma"], Meta(description="Arrivals of a rate series; gamma obeys cv, poisson is cv 1.")
    ] = "poisson"
    cv: Annotated[
        float,
        Meta(ge=0.01, le=20, description="Gamma arrivals: coefficient of variation of the times between requests."),
    ] = 1.0
    isl_tokens: Annotated[_Tokens | None, Meta(description="Mean ISL of a rate series where it gives none.")] = None
    osl_tokens: Annotated[_Tokens | None, Meta(description="Mean OSL of a rate series where it gives none.")] = None
    length_cv: Annotated[
        float,
        Meta(
            ge=0,
            le=10,
            description="Rate series: coefficient of variation of ISL and OSL in a bin, lognormal; 0: all are the mean."
            " Published traces have 0.8 to 3.",
        ),
    ] = 1.0
    gaps: Annotated[
        Literal["error", "skip"], Meta(description="Bins without data in a rate series: refuse, or count as empty.")
    ] = "error"


def check_knobs(knobs: RateKnobs) -> None:
    """Hold knobs that were made in code against the bounds of their fields.

    Raises:
        ConfigError: A value is out of its bounds.
    """
    try:
        msgspec.convert(msgspec.structs.asdict(knobs), RateKnobs)
    except msgspec.ValidationError as error:
        name = str(error).partition(" - at ")[2].strip("`$.")
        raise ConfigError(
            name, f"is {getattr(knobs, name)!r}", f"Write {accepted_values(fields_of(RateKnobs)[name].type)}."
        ) from error
