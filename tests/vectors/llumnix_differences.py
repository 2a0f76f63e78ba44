"""Intended deviations from Llumnix's cases of single components: their cases and expected outputs."""

from typing import Any, Final

from tests.vectors.cases import Case

WORDS: Final = {"INVALID_ARGUMENT": "ignored", "RESOURCE_EXHAUSTED": "no_slots", "INTERNAL": "failed", "OK": "done"}
"""Answer of a worker for each gRPC code of Llumnix's agent."""


def has_a_code(case: Case) -> bool:
    """Return True if the case expects a gRPC code."""
    return case.op == "llumnix.migrate_rpc" and case.expected.get("grpc_code") in WORDS


def in_words(case: Case) -> dict[str, Any]:
    """Return the expected output with the worker's answer in place of the gRPC code."""
    rest = {key: one for key, one in case.expected.items() if key != "grpc_code"}
    return {**rest, "answer": WORDS[case.expected["grpc_code"]]}


def has_no_cache(case: Case) -> bool:
    """Return True if the size of the KV cache is unknown."""
    return case.op == "llumnix.metric" and case.given["given"].get("status", {}).get("num_total_gpu_tokens") == 0


def falls_back(case: Case) -> bool:
    """Return True if the case names the filters to skip when no instance passes all of them."""
    return case.op == "llumnix.filter_single" and "skipped_on_fallback" in case.expected


def without_fallback(case: Case) -> dict[str, Any]:
    """Return the expected output of the first pass, without the fallback."""
    return {key: one for key, one in case.expected.items() if key != "skipped_on_fallback"}


def is_waited_for(case: Case) -> bool:
    """Return True if the case expects a time that the cycle waits for answers."""
    return case.op == "llumnix.execute" and "cycle_blocked_s" in case.expected


def is_unanswered(case: Case) -> bool:
    """Return True if the case expects that no server listens."""
    return case.op == "llumnix.execute" and case.expected.get("error") == "UNAVAILABLE"
