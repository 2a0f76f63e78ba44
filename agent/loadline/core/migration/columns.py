"""What is known of many workers, in columns: what concerns all of them takes some vector operations."""

from typing import Any, Final, Self

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from loadline.core.migration.load_metrics import MEASURES

Mask = NDArray[np.bool_]
Numbers = NDArray[np.float64]
Times = NDArray[np.int64]
Codes = NDArray[np.int32]
Rows = NDArray[np.intp]

IN_REQUESTS, IN_TOKENS, IN_SLOTS, RECEIVING, OUT_REQUESTS, OUT_TOKENS, OUT_SLOTS, SENDING = range(8)
"""Rows of ``moving``: slots are those of requests still under way. Who ``RECEIVING`` or ``SENDING`` is surely at it."""
_MOVING: Final = 8


class WorkerColumns(Struct):
    """One place a worker in each. Times in ms of our clock."""

    measures: Numbers
    """As ``measures.measure`` gives them, but with the slots that there are where it has those that are free."""
    moving: Numbers
    """What moves in flight take from each worker, and bring to it."""
    alive: Mask
    """Ready, and neither draining nor gone."""
    draining: Mask
    """On its way out, and not empty yet."""
    schedulable: Mask
    """It says that it may be given work."""
    excluded: Mask
    """It refused a command, and has not reported since."""
    parallel: Mask
    """One of several data-parallel ranks."""
    reserved: Codes
    """What it is kept for, as of ``RESERVED``."""
    node: Codes
    unit: Codes
    """Numbers of its node and its unit; -1: it names none."""
    seen_at_ms: Times
    """When it last reported."""
    changed_at_ms: Times
    """When its samples last differed from those before, or it had nothing to do."""
    last_assigned_at_ms: Times
    """When it last was given a request by whoever routes."""
    breaker_open_until_ms: Times
    """It is not asked before that."""
    tpot_ms: Numbers
    """Predicted time per output token, without what moves in flight mean."""

    @classmethod
    def of(cls, size: int) -> Self:
        """Columns with so many places."""
        flags: list[Any] = [np.zeros(size, dtype=np.bool_) for _ in range(5)]
        codes: list[Any] = [np.zeros(size, dtype=np.int32) for _ in range(3)]
        times: list[Any] = [np.zeros(size, dtype=np.int64) for _ in range(4)]
        columns: list[Any] = [
            np.zeros((MEASURES, size)),
            np.zeros((_MOVING, size)),
            *flags,
            *codes,
            *times,
            np.zeros(size),
        ]
        return cls(*columns)

    def first(self, count: int) -> Self:
        """The first places, of these very columns."""
        return type(self)(*(column[..., :count] for column in self._all()))

    def doubled(self) -> Self:
        """A copy with twice the places."""
        return type(self)(*(np.concatenate((column, np.zeros_like(column)), axis=-1) for column in self._all()))

    def move(self, row: int, to: int) -> None:
        """One place takes what another has."""
        for column in self._all():
            column[..., to] = column[..., row]

    def _all(self) -> list[Any]:
        return [getattr(self, name) for name in self.__struct_fields__]
