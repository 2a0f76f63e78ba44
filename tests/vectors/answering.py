"""Type of the answers to cases, and the exception for cases without one."""

from collections.abc import Callable
from typing import Any

Answer = Callable[[Any], Any]
"""Maps the input of a case to the product's output."""


class NotCovered(Exception):
    """No answer covers this case."""


def only(given: dict[str, Any], *keys: str) -> None:
    """Raise ``NotCovered`` if the input has keys that the answer does not know."""
    unknown = sorted(given.keys() - set(keys))
    if unknown:
        raise NotCovered(f"no answer for {', '.join(unknown)}")
