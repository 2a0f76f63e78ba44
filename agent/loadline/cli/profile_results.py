"""Results of the command ``profile``: files, plots, and the suggestion."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from loadline import report
from loadline.cli import output
from loadline.cli.fit import FittedEngine, fit_engine, format_fit
from loadline.cli.output_files import write_files
from loadline.core.engines.sweeps import DecodeSweep, PrefillSweep
from loadline.errors import DataError
from loadline.profiler.choice import Workload, decode_candidates, prefill_candidates, thresholds
from loadline.profiler.record import Record
from loadline.profiler.results import (
    DECODE_FILE,
    PREFILL_FILE,
    decode_file,
    decode_sweep,
    prefill_file,
    prefill_sweep,
    usage_factor,
)
from loadline.report.sweeps import decode_plot, prefill_plot

_USAGE_ERROR: Final = 0.2
"""Deviation of the reported KV usage from the computed one above which the size of the cache is doubtful."""


class SuggestedEngine(Struct, frozen=True):
    """A measured engine as a candidate for a role."""

    role: str
    engine: str
    latency_ms: float
    tokens_per_s_per_gpu: float
    within: bool
    """True if the latency meets the objective."""


class ProfileResult(Struct, frozen=True):
    """Result of ``loadline profile``."""

    directory: str
    workload: Workload
    unusable: dict[str, str]
    """Problem of each engine without a profile, by its name, also of those that were not ready."""
    suggestions: list[SuggestedEngine] = []
    """The candidates of each role, the suggested one first."""
    threshold: dict[str, float] = {}
    """Values for ``[models.threshold]``."""
    fits: dict[str, FittedEngine] = {}
    """Linear parameters of the suggested engines."""
    notes: list[str] = []


def write_results(folder: Path, records: Mapping[str, Record], workload: Workload) -> ProfileResult:
    """Write profiles and plots."""
    prefills, decodes, unusable = {}, {}, {}
    for name, record in records.items():
        try:
            prefills[name], decodes[name] = prefill_sweep(record), decode_sweep(record)
        except DataError as error:
            unusable[name] = str(error)
    if not prefills:
        return ProfileResult(str(folder), workload, unusable)
    notes: list[str] = []
    for name, sweep in prefills.items():
        _write(folder / name, sweep, decodes[name])
        notes += [*_usage_notes(name, records[name]), *_batch_notes(name, records[name])]
    prefill, decode = prefill_candidates(prefills, workload), decode_candidates(decodes, workload)
    _write(folder, prefills[prefill[0].name], decodes[decode[0].name])
    notes += _write_plots(folder, prefills, decodes, workload)
    fits = {}
    for name in dict.fromkeys((prefill[0].name, decode[0].name)):
        # Between two contexts only KV usages that both have could be used.
        context = min(decodes[name].rows(), key=lambda one: abs(one - workload.context_tokens))
        try:
            fits[name] = fit_engine(name, [prefills[name], decodes[name]], context)
        except DataError as error:
            notes.append(f"{name}: no linear parameters: {error}")
    suggestions = [
        SuggestedEngine(role, one.name, one.latency_ms, one.tokens_per_s_per_gpu, one.within)
        for role, found in (("prefill", prefill), ("decode", decode))
        for one in found
    ]
    knobs = msgspec.structs.asdict(thresholds(prefill[0], decode[0], workload))
    return ProfileResult(str(folder), workload, unusable, suggestions, knobs, fits, notes)


def format_profile(result: ProfileResult) -> str:
    """Format the suggestion, with what it makes of the configuration."""
    lines = [f"{name}: no profile: {problem}" for name, problem in result.unusable.items()]
    if not result.suggestions:
        return "\n".join(lines)
    workload = result.workload
    objectives = {"prefill": workload.ttft_ms, "decode": workload.itl_ms}
    rows = [("", "engine", "latency", "tokens per s and GPU", "objective")]
    for one in result.suggestions:
        met = f"{'within' if one.within else 'above'} {objectives[one.role]:g} ms"
        rows.append((one.role, one.engine, f"{one.latency_ms:.4g} ms", f"{one.tokens_per_s_per_gpu:.4g}", met))
    tokens = f"{workload.isl_tokens:g} tokens in and {workload.osl_tokens:g} out"
    lines += [*result.notes, "", f"At {tokens}, the first of each role is suggested:", output.table(rows)]
    lines += ["", "[models.threshold]", *(f"{name} = {value:g}" for name, value in result.threshold.items())]
    for name, fitted in result.fits.items():
        lines += ["", f"{name}, with a context of {fitted.context_tokens:g} tokens:", format_fit(fitted)]
    return "\n".join([*lines, "", f"profiles: {result.directory}, and a folder for each engine in it"])


def _write(folder: Path, prefill: PrefillSweep, decode: DecodeSweep) -> None:
    files = {folder / PREFILL_FILE: prefill_file(prefill), folder / DECODE_FILE: decode_file(decode)}
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
    write_files(files)


def _write_plots(
    folder: Path, prefills: Mapping[str, PrefillSweep], decodes: Mapping[str, DecodeSweep], workload: Workload
) -> list[str]:
    """Write the plots; return a note if there are none."""
    if not report.available():
        return ["No plots: they need matplotlib. Install it: pip install 'loadline-agent[plots]'."]
    write_files(
        {
            folder / "prefill_performance.png": prefill_plot(prefills, workload.ttft_ms),
            folder / "decode_performance.png": decode_plot(decodes, workload.itl_ms),
        }
    )
    return []


def _usage_notes(name: str, record: Record) -> Iterator[str]:
    factor = usage_factor(record)
    if factor is not None and abs(factor - 1.0) > _USAGE_ERROR:
        yield (
            f"{name}: the engine reports {factor:.0%} of the KV usage that its tokens would have. "
            "Give its capacity with --kv-tokens."
        )


def _batch_notes(name: str, record: Record) -> Iterator[str]:
    """Yield where fewer requests ran at a time than at the shortest context, where batch slots are the limit."""
    found = {} if record.limits is None else record.limits.batches_found
    shortest = min(task.context_tokens for task in record.decodes)
    fewer = [f"{found[context]} at {context} tokens" for context in sorted(found) if context > shortest]
    if fewer:
        yield (
            f"{name}: fewer requests ran at a time at long contexts, so larger batches are missing there: at most "
            f"{', '.join(fewer)}. Enable the engine's prefix cache, and name another --directory."
        )
