"""Results of checks: one sentence each, and a remedy unless all is well."""

from typing import Final, Literal

from msgspec import Struct

Verdict = Literal["ok", "warning", "failed", "skipped"]

_NAMES_MAX: Final = 3


class Finding(Struct, frozen=True):
    """Result of one check."""

    check: str
    verdict: Verdict
    text: str
    remedy: str = ""


def ok(check: str, text: str) -> Finding:
    """Return the result of a check that found nothing wrong."""
    return Finding(check, "ok", text)


def warning(check: str, text: str, remedy: str) -> Finding:
    """Return a result that an operator should know, while the agent works."""
    return Finding(check, "warning", text, remedy)


def failed(check: str, text: str, remedy: str) -> Finding:
    """Return a result with which the agent does not work, or not in every situation."""
    return Finding(check, "failed", text, remedy)


def skipped(check: str, text: str, remedy: str) -> Finding:
    """Return the result of a check that could not be done."""
    return Finding(check, "skipped", text, remedy)


def first_of(names: list[str]) -> str:
    """Return the first names of a list, and the number of the others."""
    rest = len(names) - _NAMES_MAX
    return ", ".join(names[:_NAMES_MAX]) + (f" and {rest} more" if rest > 0 else "")
