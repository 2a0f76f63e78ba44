"""Results of the command ``profile``: files, plots, and the suggestion."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from loadline import report
from loadline.cli import output
from loadline.cli.fit import print_fit
from loadline.cli.output_files import write_files
from loadline.core.engines.sweeps import DecodeSweep, PrefillSweep
from loadline.errors import DataError
from loadline.profiler.choice import Parallelisation, Workload, decode_candidates, prefill_candidates, thresholds
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


def write_results(folder: Path, records: Mapping[str, Record], workload: Workload) -> bool:
    """Write profiles and plots, and print the suggestion; return False if an engine has too few points."""
    prefills, decodes = {}, {}
    for name, record in records.items():
        try:
            prefills[name], decodes[name] = prefill_sweep(record), decode_sweep(record)
        except DataError as error:
            print(f"{name}: no profile: {error}")
    if not prefills:
        return False
    for name, sweep in prefills.items():
        _write(folder / name, sweep, decodes[name])
        _check_usage(name, records[name])
    prefill, decode = prefill_candidates(prefills, workload), decode_candidates(decodes, workload)
    _write(folder, prefills[prefill[0].name], decodes[decode[0].name])
    _write_plots(folder, prefills, decodes, workload)
    _print_suggestion(prefill, decode, workload)
    for name in dict.fromkeys((prefill[0].name, decode[0].name)):
        # Between two contexts only KV usages that both have could be used.
        context = min(decodes[name].rows(), key=lambda one: abs(one - workload.context_tokens))
        print(f"\n{name}, with a context of {context:g} tokens:")
        try:
            print_fit(name, [prefills[name], decodes[name]], context)
        except DataError as error:
            print(f"no linear parameters: {error}")
    print(f"\nprofiles: {folder}, and a folder for each engine in it")
    return len(prefills) == len(records)


def _write(folder: Path, prefill: PrefillSweep, decode: DecodeSweep) -> None:
    files = {folder / PREFILL_FILE: prefill_file(prefill), folder / DECODE_FILE: decode_file(decode)}
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
    write_files(files)


def _write_plots(
    folder: Path, prefills: Mapping[str, PrefillSweep], decodes: Mapping[str, DecodeSweep], workload: Workload
) -> None:
    if not report.available():
        print("No plots: they need matplotlib. Install it: pip install 'loadline-agent[plots]'.")
        return
    write_files(
        {
            folder / "prefill_performance.png": prefill_plot(prefills, workload.ttft_ms),
            folder / "decode_performance.png": decode_plot(decodes, workload.itl_ms),
        }
    )


def _print_suggestion(
    prefill: Sequence[Parallelisation], decode: Sequence[Parallelisation], workload: Workload
) -> None:
    rows = [("", "engine", "latency", "tokens per s and GPU", "objective")]
    for role, objective_ms, found in (("prefill", workload.ttft_ms, prefill), ("decode", workload.itl_ms, decode)):
        for one in found:
            met = f"{'within' if one.within else 'above'} {objective_ms:g} ms"
            rows.append((role, one.name, f"{one.latency_ms:.4g} ms", f"{one.tokens_per_s_per_gpu:.4g}", met))
    print(
        f"\nAt {workload.isl_tokens:g} tokens in and {workload.osl_tokens:g} out, the first of each role is suggested:"
    )
    print(output.table(rows))
    print("\n[models.threshold]")
    for name, value in msgspec.structs.asdict(thresholds(prefill[0], decode[0], workload)).items():
        print(f"{name} = {value:g}")


def _check_usage(name: str, record: Record) -> None:
    factor = usage_factor(record)
    if factor is not None and abs(factor - 1.0) > _USAGE_ERROR:
        print(
            f"{name}: the engine reports {factor:.0%} of the KV usage that its tokens would have. "
            "Give its capacity with --kv-tokens."
        )
