"""Command ``fit``: the linear latency model of an engine from a profiler's sweeps."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from loadline.cli import output
from loadline.core.engines.fitting import Fit, FitRefused, batches_of, fit_decode, fit_prefill, linear_times
from loadline.core.engines.profile import LinearKnobs
from loadline.core.engines.sweeps import DecodeSweep, PrefillSweep
from loadline.errors import ConfigError, DataError
from loadline.profile_files import read_sweeps
from loadline.toml.checking import checked

_GOOD: Final = 0.1
"""Mean relative error above which a line fits a sweep poorly."""
_SAMPLES_MIN: Final = 3
"""Samples from which on a line has an error: it goes through any two."""


class FittedLine(Struct, frozen=True):
    """Line ``constant_ms + slope_ms * x`` of a role; x is the batch in requests (decode), or the tokens (prefill)."""

    constant_ms: float
    slope_ms: float
    samples: int
    mean_error: float | None
    """Mean relative error; None: unknown, since the line goes through all samples."""
    largest_error: float | None


class FittedEngine(Struct, frozen=True):
    """Result of ``loadline fit``."""

    linear: LinearKnobs
    """Value of ``linear`` for a pool of the configuration."""
    decode: FittedLine
    prefill: FittedLine
    context_tokens: float | None
    """Mean context length of a request at which decode is fitted; None: at all measured ones."""
    notes: list[str]
    """Sentences about what is doubtful."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fit``."""
    add = parser.add_argument
    add(
        "--profile",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help="sweeps, or folders of a profiler",
    )
    add(
        "--context",
        type=float,
        metavar="TOKENS",
        help="fit decode at this mean context length of a request (default: at all measured ones)",
    )
    output.arguments(parser)


def fit(options: argparse.Namespace) -> int:
    """Fit lines to the sweeps; print them and the line for the configuration."""
    sweeps = [sweep for path in dict.fromkeys(options.profile) for sweep in read_sweeps(path)]
    fitted = fit_engine(", ".join(map(str, options.profile)), sweeps, options.context)
    output.print_result(options, fitted, format_fit(fitted))
    return 0


def fit_engine(named: str, sweeps: Sequence[PrefillSweep | DecodeSweep], context_tokens: float | None) -> FittedEngine:
    """Fit lines to sweeps.

    Args:
        named: Name of the sweeps, for errors.
        sweeps: At least one of each role.
        context_tokens: Mean context length of a request at which decode is fitted; None: at all measured ones.

    Raises:
        DataError: The sweeps determine no lines.
        ConfigError: The context was not measured.
    """
    prefills = [sweep for sweep in sweeps if isinstance(sweep, PrefillSweep)]
    decodes = [sweep for sweep in sweeps if isinstance(sweep, DecodeSweep)]
    for role, found in (("prefill", prefills), ("decode", decodes)):
        if not found:
            raise DataError(f"{named}: there is no {role} sweep. Name one with --profile.")
    _check_context(context_tokens, decodes)
    decode = _fitted(named, "decode", fit_decode(decodes, context_tokens))
    prefill = _fitted(named, "prefill", fit_prefill(prefills))
    times = linear_times(decode, prefill)
    largest = max(batch for sweep in decodes for batch in batches_of(sweep))
    knobs = {
        **msgspec.structs.asdict(times),
        "max_kv_tokens": min(sweep.max_kv_tokens for sweep in decodes),
        "max_batch_requests": max(1.0, float(round(largest))),
    }
    try:
        linear = checked(knobs, LinearKnobs)
    except ConfigError as error:
        problem = f"the fitted {error.place} {error.problem}, which no engine has"
        raise DataError(f"{named}: {problem}. Profile the engine again.") from error
    return FittedEngine(
        linear,
        _line(decode, times.alpha, times.beta),
        _line(prefill, times.gamma, times.delta),
        context_tokens,
        list(_notes(decode, prefill, context_tokens)),
    )


def format_fit(fitted: FittedEngine) -> str:
    """Format fitted lines as a table, with the line for the configuration."""
    rows = [("", "ms", "samples", "mean error", "largest")]
    for name, line, unit in (("iteration", fitted.decode, "batch"), ("prefill", fitted.prefill, "tokens")):
        text = f"{line.constant_ms:.5g} + {line.slope_ms:.5g} * {unit}"
        rows.append((name, text, str(line.samples), _error(line.mean_error), _error(line.largest_error)))
    knobs = msgspec.structs.asdict(fitted.linear)
    written = f"linear = {{ {', '.join(f'{name} = {value:.6g}' for name, value in knobs.items())} }}"
    return "\n".join([output.table(rows), *fitted.notes, written])


def _notes(decode: Fit, prefill: Fit, context_tokens: float | None) -> Iterator[str]:
    for role, one in (("decode", decode), ("prefill", prefill)):
        if one.samples < _SAMPLES_MIN:
            yield f"The {role} line goes through both of its samples, so its error is unknown."
        elif one.mean_error > _GOOD:
            yield f"The {role} line fits its sweep poorly; use {role}_profile instead."
    if decode.mean_error > _GOOD and context_tokens is None:
        yield "Iteration times depend on the context length; fit one with --context."


def _check_context(context_tokens: float | None, sweeps: list[DecodeSweep]) -> None:
    if context_tokens is None:
        return
    low = max(min(sweep.context_tokens) for sweep in sweeps)
    high = min(max(sweep.context_tokens) for sweep in sweeps)
    if not low <= context_tokens <= high:
        raise ConfigError("--context", f"{context_tokens:g} was not measured", f"Write {low:g} to {high:g} tokens.")


def _fitted(named: str, role: str, found: Fit | FitRefused) -> Fit:
    if isinstance(found, FitRefused):
        raise DataError(f"{named}: {role}: {found.problem}.")
    return found


def _line(found: Fit, constant_ms: float, slope_ms: float) -> FittedLine:
    known = found.samples >= _SAMPLES_MIN
    errors = (found.mean_error, found.largest_error) if known else (None, None)
    return FittedLine(constant_ms, slope_ms, found.samples, *errors)


def _error(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"
