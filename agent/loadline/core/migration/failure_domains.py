"""Failure domains: the workers that fail together with failed workers.

- ``instance``: no other worker;
- ``node``: all workers on the same node;
- ``instance-unit``: all data-parallel ranks of the same unit;
- ``node-unit``: all workers on the same node, and all ranks of the units of these workers.

A worker whose record lacks the node or unit fails alone. Each record contains the number of ranks, so the rules hold
for mixed fleets.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from loadline.core.engines.arrays import Codes, Mask
from loadline.core.migration.failed_workers import FailedWorker
from loadline.core.migration.knobs import FailoverDomain
from loadline.core.migration.worker_table import WorkerTable

BY_NODE: Final[frozenset[FailoverDomain]] = frozenset({"node", "node-unit"})
BY_UNIT: Final[frozenset[FailoverDomain]] = frozenset({"instance-unit", "node-unit"})


class DomainMember(Struct, frozen=True):
    """A failed worker that is in none of the tables."""

    node: int
    """Code of its node; -1 if its record names none."""
    unit: int
    """Code of its unit; -1 if its record names none."""
    parallel: bool
    """True if it is one of several data-parallel ranks."""


class FailedDomains(Struct, frozen=True):
    """Codes of failed nodes and units."""

    nodes: frozenset[int] = frozenset()
    units: frozenset[int] = frozenset()

    def affected(self, table: WorkerTable, failed: Mask) -> Mask:
        """Return the workers that failed themselves (``failed``) or whose node or unit failed."""
        columns, found = table.columns, failed.copy()
        if self.nodes:
            found |= np.isin(columns.node, sorted(self.nodes), kind="table")
        if self.units:
            found |= np.isin(columns.unit, sorted(self.units), kind="table") & columns.parallel
        return found


NO_FAILED_DOMAINS: Final = FailedDomains()


def failed_domains(
    tables: Sequence[tuple[WorkerTable, Mask]], elsewhere: Iterable[DomainMember], domain: FailoverDomain
) -> FailedDomains:
    """Return the nodes and units that failed.

    Args:
        tables: Tables of workers, each with the workers that failed themselves.
        elsewhere: Failed workers that are in none of the tables.
        domain: The failure domain.
    """
    members = list(elsewhere)
    nodes: set[int] = set()
    if domain in BY_NODE:
        nodes = {member.node for member in members}.union(
            *(_codes(table.columns.node[failed]) for table, failed in tables)
        )
    units: set[int] = set()
    if domain in BY_UNIT:
        units = {member.unit for member in members if member.parallel}
        by_node = FailedDomains(frozenset(nodes - {-1}))
        for table, failed in tables:
            columns, affected = table.columns, by_node.affected(table, failed)
            units |= _codes(columns.unit[affected & columns.parallel])
    return FailedDomains(frozenset(nodes - {-1}), frozenset(units - {-1}))


def lacks_domain(worker: FailedWorker, domain: FailoverDomain) -> bool:
    """Return True if a failed worker fails alone because its record lacks the failure domain."""
    without_unit = worker.parallel and not worker.unit
    return (domain in BY_NODE and not worker.node) or (domain in BY_UNIT and without_unit)


def _codes(codes: Codes) -> set[int]:
    return set(codes.tolist())
