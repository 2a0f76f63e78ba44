"""Kinds of mutations, and runs of the simulated world with one safeguard disabled."""

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

from loadline.sim.chaos.plan import SEEDS_OF_TWO_MODELS
from loadline.sim.chaos.runner import ChaosResult, run_plan

CI_SEEDS = range(100)
NIGHT_SEEDS = CI_SEEDS[SEEDS_OF_TWO_MODELS:]
"""Those with the model ``night``."""
CI_HOURS = 0.3
"""Simulated hours of each of these runs: nine inject every kind of fault."""
SEARCH_SEEDS_MAX = 60
TEST_SEEDS_MAX = 12
"""Runs of each mutation in a test; one that needs more should get another seed."""

Apply = Callable[[], AbstractContextManager[Any]]


class Mutation(NamedTuple):
    """A disabled safeguard, and the seed that then violates the invariant."""

    apply: Apply
    seed: int
    violates: str
    hours: float = CI_HOURS
    """Simulated hours of its runs; more than in CI if the violation takes longer."""


def wrapped(owner: Any, name: str, new: Callable[..., Any]) -> Apply:
    """Replace a function or method by ``new(old, *args)``."""

    @contextlib.contextmanager
    def apply() -> Iterator[None]:
        old = getattr(owner, name)
        with patch.object(owner, name, lambda *args, **kwargs: new(old, *args, **kwargs)):
            yield

    return apply


def constant(owner: Any, name: str, value: Any) -> Apply:
    """Replace the result of a function or method by a constant."""
    return wrapped(owner, name, lambda _old, *_args, **_kwargs: value)


def combined(*mutations: Apply) -> Apply:
    """Apply several mutations at once, of safeguards that back each other up."""

    @contextlib.contextmanager
    def apply() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for one in mutations:
                stack.enter_context(one())
            yield

    return apply


def assert_detected(mutation: Mutation, seeds: Sequence[int] = CI_SEEDS) -> None:
    """Check that a mutation violates its invariant, with its own seed or with one of the first others."""
    found: dict[int, str] = {}
    for seed in [mutation.seed, *(seed for seed in seeds if seed != mutation.seed)][:TEST_SEEDS_MAX]:
        with mutation.apply():
            violation = run_plan(seed, mutation.hours).violation
        if violation is not None and violation.name == mutation.violates:
            return
        found[seed] = "nothing" if violation is None else violation.name
    raise AssertionError(
        f"{mutation.violates} is not violated, but {found}; find a seed with python -m tests.simulation.mutations"
    )


def find_seeds(
    mutations: Mapping[str, Mutation],
    run_mutated: Callable[[str, int], ChaosResult],
    seeds: Sequence[int] = CI_SEEDS,
) -> None:
    """Print the violations of each mutation by seed until the listed one; arguments filter mutations by name."""
    wanted = [name for name in mutations if not sys.argv[1:] or any(word in name for word in sys.argv[1:])]
    with ProcessPoolExecutor(2) as pool:
        for name in wanted:
            found = pool.map(partial(run_mutated, name), seeds, chunksize=1)
            for result in itertools.islice(found, SEARCH_SEEDS_MAX):
                if result.violation:
                    sys.stdout.write(f"{name}: {result.seed}, {result.violation.name} ({result.hours} h)\n")
                if result.violation and result.violation.name == mutations[name].violates:
                    break
            else:
                sys.stdout.write(f"{name}: {mutations[name].violates} is not violated\n")
