"""Traces in memory, and the knobs of their selection."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from loadline.errors import ConfigError
from loadline.toml.checking import accepted_values, fields_of

REQUESTS_MAX = 5_000_000  # 1 GB of arrivals, and more than ten minutes of simulation
BLOCKS_MAX = 20_000_000  # ids of prefix blocks, 0.7 GB; the published conversations have 0.3 million
TOKENS_MAX = 1_000_000  # the longest published prompt has 0.9 million
TIME_S_MAX = 366 * 86_400.0  # a year; a larger value is a date, not a time since the start
SCALE_MAX = 1_000.0
PREFIX_BLOCK_TOKENS = 512  # block size of the published traces

_Time = Annotated[float, Meta(ge=0, le=TIME_S_MAX)]
_Tokens = Annotated[int, Meta(ge=1, le=TOKENS_MAX)]


class Arrival(Struct, frozen=True, order=True, gc=False):
    """Request of a trace."""

    arrival_s: float
    """Arrival time since the start of the trace."""
    isl_tokens: int
    osl_tokens: int
    prefix: tuple[int, ...] = ()
    """Ids of the prompt's leading blocks, if the trace has them; all but the last have ``PREFIX_BLOCK_TOKENS``."""
    hit_tokens: int = 0
    """Prompt tokens that hit the prefix cache, if the trace has their number instead of ids; at most the ISL."""


class Trace(Struct):
    """Arrivals in order of time."""

    name: str
    arrivals: list[Arrival]
    duration_s: float
    """Length of the selected window, or up to the end of the data: the last arrival or bin."""


class RateKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Selection of a trace, and the arrival process of a rate series."""

    start_s: Annotated[_Time, Meta(description="Start within the trace; times are relative to it.")] = 0.0
    duration_s: Annotated[
        Annotated[float, Meta(gt=0, le=TIME_S_MAX)] | None,
        Meta(description="Length to take from the trace; unset: to its end."),
    ] = None
    scale: Annotated[
        float,
        Meta(
            gt=0,
            le=SCALE_MAX,
            description="Factor of the load: below 1 requests are dropped, above 1 jittered copies are added.",
        ),
    ] = 1.0
    process: Annotated[
        Literal["poisson", "gamma"], Meta(description="Arrivals of a rate series; gamma uses cv, poisson has cv 1.")
    ] = "poisson"
    cv: Annotated[
        float,
        Meta(ge=0.01, le=20, description="Gamma arrivals: coefficient of variation of the times between requests."),
    ] = 1.0
    isl_tokens: Annotated[_Tokens | None, Meta(description="Mean ISL of a rate series for bins without one.")] = None
    osl_tokens: Annotated[_Tokens | None, Meta(description="Mean OSL of a rate series for bins without one.")] = None
    length_cv: Annotated[
        float,
        Meta(
            ge=0,
            le=10,
            description="Rate series: coefficient of variation of the lognormal ISL and OSL in a bin; 0: all equal the"
            " mean. Published traces have 0.8 to 3.",
        ),
    ] = 1.0
    gaps: Annotated[
        Literal["error", "skip"], Meta(description="Bins without data in a rate series: fail, or count as empty.")
    ] = "error"


def check_knobs(knobs: RateKnobs) -> None:
    """Check knobs made in code against the bounds of their fields.

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
