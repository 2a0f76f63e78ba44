"""Arrays of worker metrics, so that policies evaluate all workers with vector operations."""

from typing import Any, Final, Self

import numpy as np
from msgspec import Struct

from loadline.core.engines.arrays import Codes, FloatArray, Mask, Times
from loadline.core.migration.measures import MEASURES

IN_REQUESTS, IN_TOKENS, IN_SLOTS, RECEIVING, OUT_REQUESTS, OUT_TOKENS, OUT_SLOTS, SENDING = range(8)
"""Rows of ``in_flight``. ``RECEIVING`` and ``SENDING`` count migrations that have not ended."""
BUSY_SLOTS: Final = slice(IN_SLOTS, None, OUT_SLOTS - IN_SLOTS)
"""``IN_SLOTS`` and ``OUT_SLOTS``."""
OPPOSITE: Final = slice(SENDING, IN_SLOTS, RECEIVING - SENDING)
"""``SENDING`` and ``RECEIVING``: a worker that does the one must not begin the other."""
_IN_FLIGHT: Final = 8


class WorkerColumns(Struct):
    """Arrays whose last axis has one place per worker. Times are in ms of the agent's clock."""

    measures: FloatArray
    """Measures in the order of ``measures``, with total slots in place of free slots."""
    in_flight: FloatArray
    """Effect of the migrations in flight on each worker."""
    alive: Mask
    """True for workers that are registered, ready and not draining."""
    draining: Mask
    """True for workers that drain and are not empty yet."""
    schedulable: Mask
    """True for workers that accept new requests, by their samples."""
    excluded: Mask
    """True for workers that refused a command and have not reported since."""
    parallel: Mask
    """True for workers that are one of several data-parallel ranks."""
    reserved: Codes
    """Role for which the worker is reserved, by ``RESERVED_CODES``."""
    node: Codes
    """Code of the node; -1 if the record names none."""
    unit: Codes
    """Code of the data-parallel unit; -1 if the record names none."""
    seen_at_ms: Times
    """Time of the last report."""
    changed_at_ms: Times
    """Time of the last report with other measures or without requests."""
    last_assigned_at_ms: Times
    """Time at which the requests last increased other than by a migration."""
    breaker_open_until_ms: Times
    """Time until which the worker gets no commands."""
    tpot_ms: FloatArray
    """Predicted time per output token, without the migrations in flight."""

    @classmethod
    def of(cls, size: int) -> Self:
        """Return columns with ``size`` places."""
        flags: list[Any] = [np.zeros(size, dtype=np.bool_) for _ in range(5)]
        codes: list[Any] = [np.zeros(size, dtype=np.int32) for _ in range(3)]
        times: list[Any] = [np.zeros(size, dtype=np.int64) for _ in range(4)]
        columns: list[Any] = [
            np.zeros((MEASURES, size)),
            np.zeros((_IN_FLIGHT, size)),
            *flags,
            *codes,
            *times,
            np.zeros(size),
        ]
        return cls(*columns)

    def first(self, count: int) -> Self:
        """Return views of the first ``count`` places."""
        return type(self)(*(column[..., :count] for column in self._columns()))

    def doubled(self) -> Self:
        """Return a copy with twice the places."""
        return type(self)(*(np.concatenate((column, np.zeros_like(column)), axis=-1) for column in self._columns()))

    def copy_row(self, row: int, to: int) -> None:
        """Copy one place to another."""
        for column in self._columns():
            column[..., to] = column[..., row]

    def _columns(self) -> list[Any]:
        return [getattr(self, name) for name in self.__struct_fields__]
