"""Prefill pools that are sized by the time of their prompts, as their windows show no effect of the load."""

from collections.abc import Callable

from loadline.core.engines.regression import Line
from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.planning.sizing.evidence.latency import PoolEvidence
from loadline.core.planning.sizing.profile.counts import profile_problem


def prompt_lines(model: Model, evidence: Callable[[Pool], PoolEvidence]) -> dict[str, Line]:
    """Return the time of prompts for the prefill pools without a profile whose TTFT is late without load."""
    pools = [one for one in model.pools.values() if one.knobs.role == "prefill" and profile_problem(one)]
    found = ((pool.name, evidence(pool).prompt_line(model.objectives)) for pool in pools)
    return {name: line for name, line in found if line is not None}
