"""Which cases of Llumnix on parts of it come out otherwise on purpose, and what comes out instead."""

from typing import Any, Final

from tests.vectors.cases import Case

WORDS: Final = {"INVALID_ARGUMENT": "ignored", "RESOURCE_EXHAUSTED": "no_slots", "INTERNAL": "failed", "OK": "done"}
"""What a worker says where Llumnix's agent answers with a code of gRPC."""


def has_a_code(case: Case) -> bool:
    """A code of gRPC is expected."""
    return case.op == "llumnix.migrate_rpc" and case.expected.get("grpc_code") in WORDS


def in_words(case: Case) -> dict[str, Any]:
    """The same in words."""
    rest = {key: one for key, one in case.expected.items() if key != "grpc_code"}
    return {**rest, "answer": WORDS[case.expected["grpc_code"]]}


def has_no_cache(case: Case) -> bool:
    """The size of the KV cache is not known."""
    return case.op == "llumnix.metric" and case.given["given"].get("status", {}).get("num_total_gpu_tokens") == 0


def falls_back(case: Case) -> bool:
    """It is said which filters are left out where nobody passes all of them."""
    return case.op == "llumnix.filter_single" and "skipped_on_fallback" in case.expected


def without_fallback(case: Case) -> dict[str, Any]:
    """The first pass alone."""
    return {key: one for key, one in case.expected.items() if key != "skipped_on_fallback"}


def is_waited_for(case: Case) -> bool:
    """It is said how long answers are waited for."""
    return case.op == "llumnix.execute" and "cycle_blocked_s" in case.expected


def is_unanswered(case: Case) -> bool:
    """Nobody listens."""
    return case.op == "llumnix.execute" and case.expected.get("error") == "UNAVAILABLE"
