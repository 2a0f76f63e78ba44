"""One function for each kind of strike, in the module of what it strikes. Each gives back how to undo it."""

from collections.abc import Callable, Mapping
from typing import Final

from loadline.sim.chaos.nemesis import Nemesis, Undo
from loadline.sim.chaos.plan import KINDS, Strike
from loadline.sim.chaos.strikes import agents, moves, outside, scalers, servers, workers

STRIKES: Final[Mapping[str, Callable[[Nemesis, Strike], Undo]]] = {
    kind: getattr(module, kind)
    for module in (agents, servers, workers, scalers, outside, moves)
    for kind in KINDS
    if hasattr(module, kind)
}
"""Kind -> what it does."""


def strike(nemesis: Nemesis, one: Strike) -> None:
    """Do it now, and undo it when its time is over."""
    nemesis.struck[one.kind] = nemesis.struck.get(one.kind, 0) + 1
    nemesis.undo_after(one.lasts_ms, STRIKES[one.kind](nemesis, one))
