"""Waits between attempts: exponential backoff with jitter."""

import random
from collections.abc import Iterator


def backoff(first_s: float, max_s: float) -> Iterator[float]:
    """Yield waits in s without end: each 0.5 to 1 of the nominal wait, which doubles from first_s to max_s."""
    nominal_s = first_s
    while True:
        yield nominal_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, keeps no secret
        nominal_s = min(max_s, nominal_s * 2.0)
