"""Comparison of a worker's fences with the terms in etcd, once a command was refused as stale."""

import asyncio
from typing import Final

from loadline.adapters.logs import bounded
from loadline.adapters.outage_reasons import OutageReasons
from loadline.client.fence import EpochFence
from loadline.errors import LoadlineError
from loadline.ports import Store
from loadline.wire.codec import decode_epoch
from loadline.wire.keys import Keys

_INTERVAL_S: Final = 5.0
"""Minimum time between two reads: whoever may send commands could cause any number."""
_EPOCH: Final = "/epoch"
"""End of the key of an epoch, after the key of its leader."""

_log = bounded("worker")


class TermCheck:
    """Background check of the fences of a worker, ``run``.

    Args:
        store: Store in which agents lead.
        keys: Its keys.
        fences: Fences by kind of command.
        worker: Name of the worker, for the log.
    """

    def __init__(self, store: Store, keys: Keys, fences: dict[str, EpochFence], worker: str) -> None:
        self._store = store
        self._keys = keys
        self._fences = fences
        self._worker = worker
        self._wanted = asyncio.Event()

    def request(self) -> None:
        """Check soon if a fence has refused a command."""
        if any(fence.refused for fence in self._fences.values()):
            self._wanted.set()

    async def run(self) -> None:
        """Check the fences whenever that is requested, at most once in 5 s."""
        reasons = OutageReasons()
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            before = {kind: fence.highest for kind, fence in self._fences.items()}
            try:
                epochs = await self._epochs()
            except LoadlineError as error:
                if reasons.is_new(str(error)):
                    _log.warning("epochs_unread", worker=self._worker, detail=str(error))
            else:
                reasons.end()
                self._compare(epochs, before)
            await asyncio.sleep(_INTERVAL_S)

    def _compare(self, epochs: list[int], before: dict[str, int]) -> None:
        """Compare the fences that have not risen since the read."""
        for kind, fence in self._fences.items():
            if fence.highest == before[kind] and fence.refused and fence.compare(epochs):
                remedy = "No leader has this epoch: find out who sends commands."
                _log.warning("fence_lowered", worker=self._worker, kind=kind, epoch=before[kind], remedy=remedy)

    async def _epochs(self) -> list[int]:
        """Return the epochs of all scopes that have a leader."""
        found = {entry.key: entry.value for entry in (await self._store.read(self._keys.leaders)).entries}
        terms = (value for key, value in found.items() if key.endswith(_EPOCH) and key.removesuffix(_EPOCH) in found)
        return [epoch for value in terms if (epoch := decode_epoch(value))]
