"""Who fails together with workers that fail.

``instance``: nobody. ``node``: all on its node. ``instance-unit``: all data-parallel ranks of its unit. ``node-unit``:
all on its node, and all ranks of the units that these belong to. A worker that names no node or no unit fails alone:
nobody knows what it shares. Whether there are ranks is read from each worker itself, so a fleet of all kinds has one
answer.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from loadline.core.migration.columns import Codes, Mask
from loadline.core.migration.knobs import FailoverDomain
from loadline.core.migration.worker_table import WorkerTable

BY_NODE: Final[frozenset[FailoverDomain]] = frozenset({"node", "node-unit"})
BY_UNIT: Final[frozenset[FailoverDomain]] = frozenset({"instance-unit", "node-unit"})


class DomainMember(Struct, frozen=True):
    """A worker that has vanished: numbers of its node and its unit (-1: it named none), and whether that has ranks."""

    node: int
    unit: int
    parallel: bool


class FailedDomains(Struct, frozen=True):
    """What fails, by number."""

    nodes: frozenset[int] = frozenset()
    units: frozenset[int] = frozenset()

    def struck(self, table: WorkerTable, own: Mask) -> Mask:
        """Who of a board fails: by itself (``own``), or with its node or unit."""
        columns, found = table.columns, own.copy()
        if self.nodes:
            found |= np.isin(columns.node, sorted(self.nodes), kind="table")
        if self.units:
            found |= np.isin(columns.unit, sorted(self.units), kind="table") & columns.parallel
        return found


NO_FAILED_DOMAINS: Final = FailedDomains()


def failed_domains(
    boards: Sequence[tuple[WorkerTable, Mask]], vanished: Iterable[DomainMember], domain: FailoverDomain
) -> FailedDomains:
    """The nodes and units that fail.

    Args:
        boards: All workers, and who of them fails by itself.
        vanished: Workers that fail and are on no board.
        domain: What fails together.
    """
    members = list(vanished)
    nodes: set[int] = set()
    if domain in BY_NODE:
        nodes = {member.node for member in members}.union(*(_codes(table.columns.node[own]) for table, own in boards))
    units: set[int] = set()
    if domain in BY_UNIT:
        units = {member.unit for member in members if member.parallel}
        reached = FailedDomains(frozenset(nodes - {-1}))
        for table, own in boards:
            columns, struck = table.columns, reached.struck(table, own)
            units |= _codes(columns.unit[struck & columns.parallel])
    return FailedDomains(frozenset(nodes - {-1}), frozenset(units - {-1}))


def without_domain(table: WorkerTable, own: Mask, domain: FailoverDomain) -> Mask:
    """Those that fail and do not name what they would fail with, so that they fail alone."""
    columns, none = table.columns, np.zeros(len(table), dtype=np.bool_)
    without_node = columns.node < 0 if domain in BY_NODE else none
    without_unit = (columns.unit < 0) & columns.parallel if domain in BY_UNIT else none
    found: Mask = own & (without_node | without_unit)
    return found


def _codes(codes: Codes) -> set[int]:
    return set(codes.tolist())
