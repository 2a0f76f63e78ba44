"""Checks of engines at the addresses that workers registered: metrics, model names, and vLLM's end."""

import asyncio
from typing import Final

import msgspec
from msgspec import Struct

from loadline.adapters.http_reader import HttpReader, PageUnavailable
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.doctor.findings import Finding, failed, first_of, ok, skipped, warning
from loadline.doctor.local_vllm import aborts_at_sigterm
from loadline.doctor.store_facts import StoreFacts

_ENGINES_MAX: Final = 64
_AT_ONCE: Final = 16
_TIMEOUT_S: Final = 2.0


class _ServedModel(Struct):
    id: str = ""


class _ServedModels(Struct):
    data: list[_ServedModel] = []


class _AskedEngine(Struct, frozen=True):
    """Answers of one engine."""

    worker: WorkerRecord
    no_metrics: str = ""
    """Reason why its page of metrics cannot be read; empty: it can."""
    no_models: str = ""
    """Reason why the names of its models cannot be read; empty: they can."""
    names: tuple[str, ...] = ()
    """Names of the models that it serves."""

    @property
    def place(self) -> str:
        return f"{self.worker.worker} at {self.worker.base_url}"


async def engine_findings(store: StoreFacts) -> list[Finding]:
    """Ask at most 64 engines, the workers' names in order."""
    check = "engines"
    addressed = sorted((one for one in store.workers if one.base_url), key=lambda one: one.names)
    if not addressed:
        return [
            skipped(
                check, "no worker registered an address", "Register addresses if a gateway routes to these workers."
            )
        ]
    asked = addressed[:_ENGINES_MAX]
    at_once = asyncio.Semaphore(_AT_ONCE)
    async with HttpReader(_TIMEOUT_S) as reader:
        engines = await asyncio.gather(*(_ask(reader, worker, at_once) for worker in asked))
    found = _answers(engines)
    aborting = [one.place for one in engines if aborts_at_sigterm(one.worker.base_url)]
    if aborting:
        text = f"vLLM aborts its requests at SIGTERM: {first_of(aborting)}"
        found.append(warning("engine flags", text, "Start vLLM with --shutdown-timeout 30 or more."))
    count = f"{len(asked)} of {len(addressed)}" if len(asked) < len(addressed) else str(len(asked))
    return found or [ok(check, f"{count} serve the models of their workers, with metrics")]


def _answers(engines: list[_AskedEngine]) -> list[Finding]:
    check, found = "engines", list[Finding]()
    silent = [f"{one.place} ({one.no_models})" for one in engines if one.no_models and one.no_metrics]
    if silent:
        remedy = "Correct the worker's --advertise or --url, or let this host reach the address."
        found.append(warning(check, f"no answer from {first_of(silent)}", remedy))
    others = [one for one in engines if not (one.no_models and one.no_metrics)]
    wrong = [
        f"{one.place} serves {first_of(list(one.names)) or 'none'}, not {one.worker.model}"
        for one in others
        if not one.no_models and one.worker.model not in one.names
    ]
    if wrong:
        remedy = "Start the engine with --served-model-name MODEL, or register the worker under the name it serves."
        found.append(failed(check, first_of(wrong), remedy))
    unknown = [f"{one.place} ({one.no_models})" for one in others if one.no_models]
    if unknown:
        remedy = "Let this host read the engine's /v1/models without a key; the worker's model is compared with it."
        found.append(warning(check, f"unknown models at {first_of(unknown)}", remedy))
    unmeasured = [f"{one.place} ({one.no_metrics})" for one in others if one.no_metrics]
    if unmeasured:
        found.append(warning(check, f"no /metrics at {first_of(unmeasured)}", "Enable the engine's metrics."))
    return found


async def _ask(reader: HttpReader, worker: WorkerRecord, at_once: asyncio.Semaphore) -> _AskedEngine:
    async with at_once:
        no_metrics, no_models, names = "", "", list[str]()
        try:
            await reader.get(f"{worker.base_url}/metrics")
        except PageUnavailable as error:
            no_metrics = str(error)
        try:
            page = await reader.get(f"{worker.base_url}/v1/models")
            names = [model.id for model in msgspec.json.decode(page, type=_ServedModels).data]
        except (PageUnavailable, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            no_models = str(error)
        return _AskedEngine(worker, no_metrics, no_models, tuple(names))
