"""What an answer to a case is."""

from collections.abc import Callable
from typing import Any

Answer = Callable[[Any], Any]
"""Takes what a case gives, calls the product, says what came out."""


class NotCovered(Exception):
    """Nothing here answers that."""


def only(given: dict[str, Any], *keys: str) -> None:
    """Refuse a case that says more than is understood, rather than answer another question."""
    unknown = sorted(given.keys() - set(keys))
    if unknown:
        raise NotCovered(f"no answer for {', '.join(unknown)}")
