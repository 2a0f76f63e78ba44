"""Waits between attempts: they double, and they are jittered so that a thousand clients do not come back in step."""

import random
from collections.abc import Iterator


def backoff(first_s: float, most_s: float) -> Iterator[float]:
    """Endless waits in s: each is between half of and the full nominal wait, which doubles from first_s to most_s."""
    nominal_s = first_s
    while True:
        yield nominal_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, keeps no secret
        nominal_s = min(most_s, nominal_s * 2.0)
