"""Command ``fit``: the linear latency model of an engine from a profiler's sweeps."""

import argparse
from pathlib import Path
from typing import Final

import msgspec

from loadline.cli import output
from loadline.cli.exit_codes import reports_input_errors
from loadline.config.profiles import read_sweeps
from loadline.core.engines.fitting import Fit, FitRefused, batches_of, fit_decode, fit_prefill, linear_times
from loadline.core.engines.profile import LinearKnobs
from loadline.core.engines.sweeps import DecodeSweep, PrefillSweep
from loadline.errors import ConfigError, DataError
from loadline.toml.checking import checked

_GOOD: Final = 0.1
"""Mean relative error above which a line fits a sweep poorly."""
_SAMPLES_MIN: Final = 3
"""Samples from which on a line has an error: it goes through any two."""


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


@reports_input_errors
def fit(options: argparse.Namespace) -> int:
    """Fit lines to the sweeps; print them and the line for the configuration."""
    sweeps = [sweep for path in dict.fromkeys(options.profile) for sweep in read_sweeps(path)]
    print_fit(", ".join(map(str, options.profile)), sweeps, options.context)
    return 0


def print_fit(named: str, sweeps: list[PrefillSweep | DecodeSweep], context_tokens: float | None) -> None:
    """Fit lines to sweeps; print them and the line for the configuration.

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
        checked(knobs, LinearKnobs)
    except ConfigError as error:
        problem = f"the fitted {error.place} {error.problem}, which no engine has"
        raise DataError(f"{named}: {problem}. Profile the engine again.") from error
    rows = [("", "ms", "samples", "mean error", "largest")]
    rows.append(("iteration", f"{times.alpha:.5g} + {times.beta:.5g} * batch", *_quality(decode)))
    rows.append(("prefill", f"{times.gamma:.5g} + {times.delta:.5g} * tokens", *_quality(prefill)))
    print(output.table(rows))
    for role, one in (("decode", decode), ("prefill", prefill)):
        if one.samples < _SAMPLES_MIN:
            print(f"The {role} line goes through both of its samples, so its error is unknown.")
        elif one.mean_error > _GOOD:
            print(f"The {role} line fits its sweep poorly; use {role}_profile instead.")
    if decode.mean_error > _GOOD and context_tokens is None:
        print("Iteration times depend on the context length; fit one with --context.")
    print(f"linear = {{ {', '.join(f'{name} = {value:.6g}' for name, value in knobs.items())} }}")


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


def _quality(found: Fit) -> tuple[str, str, str]:
    if found.samples < _SAMPLES_MIN:
        return str(found.samples), "unknown", "unknown"
    return str(found.samples), f"{found.mean_error:.1%}", f"{found.largest_error:.1%}"
