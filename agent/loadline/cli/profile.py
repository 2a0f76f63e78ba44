"""Command ``profile``: measures engines, and writes what planners read."""

import argparse
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import aiohttp
from msgspec import Struct
from msgspec.structs import replace

from loadline.cli import event_loop, output
from loadline.cli.exit_codes import FAILED
from loadline.cli.profile_results import format_profile, write_results
from loadline.cli.progress import progress_display
from loadline.errors import ConfigError, DataError
from loadline.formatting import plural
from loadline.profiler.choice import Workload
from loadline.profiler.endpoint import LINE_BYTES_MAX, TIMEOUTS, EngineEndpoint
from loadline.profiler.plan import FULL, QUICK
from loadline.profiler.probe import find_dialect, find_limits
from loadline.profiler.problems import EngineProblem, EngineUnavailable
from loadline.profiler.record import Record, Setup
from loadline.profiler.run import ProfilerRun, retried
from loadline.toml.regular_file import os_error_text

_QUICK_S: Final = 120.0
_BATCH_MAX: Final = 256
_KEY_BYTES_MAX: Final = 8_192
_BUSY: Final = 0.8
"""Fraction of a core above which the profiler itself may delay what it measures."""
_LATE_PROBLEMS: Final = (EngineProblem, DataError, OSError)
"""Errors that leave a late engine out, and nothing that was measured; OSError: its folder cannot be used."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,60}")


class _Engine(Struct, frozen=True):
    name: str
    url: str
    gpus: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``profile``."""
    add = parser.add_argument
    add("--url", action="append", required=True, metavar="[NAME=]URL", help="engine; once for each parallelisation")
    add("--gpus", type=int, action="append", metavar="N", help="GPUs of an engine, in the order of --url (default: 1)")
    add("--directory", type=Path, default=Path("profile"), help="folder of all files (default: profile)")
    add("--quick", action="store_true", help="fewer points, in about two minutes for each engine")
    add("--isl", type=float, default=3_000.0, metavar="TOKENS", help="prompts of the suggestion (default: 3000)")
    add("--osl", type=float, default=150.0, metavar="TOKENS", help="outputs of the suggestion (default: 150)")
    add("--ttft-ms", type=float, default=500.0, metavar="MS", help="TTFT objective of the suggestion (default: 500)")
    add("--itl-ms", type=float, default=50.0, metavar="MS", help="ITL objective of the suggestion (default: 50)")
    add("--prefix-reuse", type=float, default=0.0, metavar="RATIO", help="part of prompts in the prefix cache, 0 to 1")
    add("--model", default="", metavar="NAME", help="name of the served model (default: the only one)")
    add("--api-key-file", type=Path, metavar="FILE", help="file with the bearer token")
    add("--max-context", type=int, metavar="TOKENS", help="longest prompt with its output (default: the model's)")
    add("--max-concurrency", type=int, default=_BATCH_MAX, metavar="N", help="largest batch (default: 256)")
    add("--kv-tokens", type=int, metavar="TOKENS", help="KV cache of an engine that reports no size")
    output.arguments(parser)


def profile(options: argparse.Namespace) -> int:
    """Measure all engines; return failure if one could not be measured to the end."""
    engines = _engines(options)
    workload = Workload(options.isl, options.osl, options.ttft_ms, options.itl_ms)
    _check(options)
    try:
        records, problems = event_loop.run(_measure_all(engines, options))
    except KeyboardInterrupt:
        print("Interrupted. The same command continues with the next point.", file=sys.stderr)
        raise
    result = write_results(options.directory, records, workload)
    absent = {name: problem for name, problem in problems.items() if name not in records}
    result = replace(result, unusable=absent | result.unusable)
    output.print_result(options, result, format_profile(result))
    return FAILED if problems or result.unusable else 0


def _engines(options: argparse.Namespace) -> list[_Engine]:
    gpus = options.gpus or [1] * len(options.url)
    if len(gpus) != len(options.url):
        counts = f"{plural(len(gpus), 'count')} for {plural(len(options.url), 'engine')}"
        raise ConfigError("--gpus", counts, "Give one for each --url.")
    found = []
    for place, (text, count) in enumerate(zip(options.url, gpus, strict=True), 1):
        if "@" in text:
            raise ConfigError("--url", "contains a login", "Use --api-key-file, since URLs are printed.")
        name, mark, url = text.partition("=") if "=" in text.split("://")[0] else (f"engine-{place}", "=", text)
        if not mark or not url.startswith(("http://", "https://")) or not _NAME.fullmatch(name):
            raise ConfigError("--url", f"{text!r} is not a name and a URL", "Write tp2=http://10.0.0.7:8000.")
        if count < 1:
            raise ConfigError("--gpus", f"{count} is below 1", "Write the GPUs of the engine.")
        found.append(_Engine(name, url, count))
    if len({one.name for one in found}) < len(found):
        raise ConfigError("--url", "two engines have one name", "Name each differently.")
    return found


def _check(options: argparse.Namespace) -> None:
    for name in ("isl", "osl", "ttft_ms", "itl_ms", "max_context", "max_concurrency", "kv_tokens"):
        value = getattr(options, name)
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"--{name.replace('_', '-')}", f"{value:g} is not above 0", "Write a larger number.")
    if not 0.0 <= options.prefix_reuse <= 1.0:
        raise ConfigError("--prefix-reuse", f"{options.prefix_reuse:g} is no ratio", "Write 0 to 1.")


async def _measure_all(engines: list[_Engine], options: argparse.Namespace) -> tuple[dict[str, Record], dict[str, str]]:
    """Measure one engine after the other; return their records, and the problems of those that failed, by name."""
    key = _key(options.api_key_file) if options.api_key_file else ""
    connector = aiohttp.TCPConnector(limit=0)
    runs: dict[str, ProfilerRun] = {}
    problems: dict[str, Exception] = {}
    async with aiohttp.ClientSession(connector=connector, timeout=TIMEOUTS, read_bufsize=LINE_BYTES_MAX) as session:
        endpoints = {one: EngineEndpoint(session, one.name, one.url, key) for one in engines}
        for engine, endpoint in endpoints.items():  # a folder that cannot be used is named before any is measured
            with _noted(problems, engine.name):
                runs[engine.name] = await _prepared(endpoint, engine, options)
        # After the minutes that the others take, an engine that was loading its model may be ready.
        late = [one for one in engines if isinstance(problems.get(one.name), EngineUnavailable)] if runs else []
        for name in list(runs):
            with _noted(problems, name):
                await _measure(runs[name], name, options)
        for engine in late:
            print(f"{engine.name}: is asked once more, as the others are done.", file=sys.stderr)
            del problems[engine.name]
            with _noted(problems, engine.name, _LATE_PROBLEMS):
                runs[engine.name] = await _prepared(endpoints[engine], engine, options)
                await _measure(runs[engine.name], engine.name, options)
    texts = {name: output.printable(str(error).removeprefix(f"{name}: ")) for name, error in problems.items()}
    return {name: run.record for name, run in runs.items()}, texts


@contextmanager
def _noted(
    problems: dict[str, Exception], name: str, kinds: tuple[type[Exception], ...] = (EngineProblem,)
) -> Iterator[None]:
    """Print the problem of one engine and keep it, so that the others are measured."""
    try:
        yield
    except kinds as error:
        problems[name] = error
        print(f"loadline: {output.printable(str(error))}", file=sys.stderr)
        if isinstance(error, EngineUnavailable):  # the others need another command, or another engine
            print("The same command continues with the next point.", file=sys.stderr)


def _key(file: Path) -> str:
    try:
        key = file.read_bytes()[:_KEY_BYTES_MAX].strip()
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {os_error_text(error)}. Name the file.") from error
    if not key:
        raise DataError(f"{file}: is empty. Write the key into it, or leave --api-key-file out.")
    if not key.isascii() or not key.decode().isprintable():
        raise DataError(f"{file}: is no key: it has other characters than printable ASCII. Name another file.")
    return key.decode()


async def _prepared(endpoint: EngineEndpoint, engine: _Engine, options: argparse.Namespace) -> ProfilerRun:
    card = await retried(lambda: endpoint.card(options.model))
    prompts = await retried(lambda: find_dialect(endpoint, card.id))
    limits = await find_limits(endpoint, card, options.max_context, options.kv_tokens, options.max_concurrency)
    grid = QUICK if options.quick else FULL
    record = Record(options.directory / engine.name, Setup(card.id, engine.gpus, grid, options.prefix_reuse))
    if record.count:
        kept = f"{engine.name}: {plural(record.count, 'point')} of an earlier run count; remove {record.path}"
        print(output.printable(f"{kept} if they are of another engine."), file=sys.stderr)
    return ProfilerRun(endpoint, prompts, record, limits)


async def _measure(run: ProfilerRun, name: str, options: argparse.Namespace) -> None:
    began_s, cpu_s = time.monotonic(), time.process_time()
    with progress_display(f"measuring {name}", "points") as on_progress:
        seconds = _QUICK_S if options.quick else None
        complete = await run.run(lambda now: on_progress(now.measured, now.planned), seconds)
    busy = (time.process_time() - cpu_s) / max(time.monotonic() - began_s, 1.0)
    if not complete:
        print(f"{name}: two minutes are over; the sweeps have fewer points than planned.", file=sys.stderr)
    if busy > _BUSY:
        print(f"{name}: the profiler used {busy:.0%} of a core, so its own delays are in the times.", file=sys.stderr)
    if run.measurement.early_ends:
        ends = plural(run.measurement.early_ends, "output")
        print(f"{name}: the model ended {ends} early; they were continued.", file=sys.stderr)
