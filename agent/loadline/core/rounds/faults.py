"""Text of an exception, for alarms and explanations."""

from typing import Final

_CHARACTERS_MAX: Final = 200


def fault_text(fault: Exception) -> str:
    """Return the type and the message of an exception, shortened to what an alarm may hold."""
    return f"{type(fault).__name__}: {fault}"[:_CHARACTERS_MAX]
