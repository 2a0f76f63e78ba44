"""Registration of a worker: a leased key that is kept alive and written again after its lease was lost."""

import asyncio
import time
from collections.abc import Callable

from loadline.adapters.backoff import backoff
from loadline.adapters.logs import bounded
from loadline.adapters.outage_reasons import OutageReasons
from loadline.client.leased_key import LeasedKey, LeaseStep
from loadline.client.resources import encode_readable, wait_at_most
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.errors import ConfigError, LoadlineError
from loadline.ports import Store
from loadline.wire.codec import Rejected

# A short interruption costs 0.2 s; after an outage of any length the worker registers again within 5 s.
_RETRY_FIRST_S = 0.2
_RETRY_MAX_S = 5.0

_log = bounded("registration")


class Registration:
    """Leased key that a background task, ``run``, maintains; no other method calls the store.

    Args:
        store: Store of the key.
        key: The key.
        value: Its first value.
        lease_ttl_s: Time for which the key outlives its owner; lease and key are checked every third of it.
        is_later: Returns True for a value of a later owner; the key is then left to it.
    """

    def __init__(
        self, store: Store, key: str, value: bytes, lease_ttl_s: int, is_later: Callable[[bytes], bool]
    ) -> None:
        self._leased = LeasedKey(store, key, value, lease_ttl_s, is_later)
        self._lease_ttl_s = lease_ttl_s
        self._wake = asyncio.Event()
        self.gone = asyncio.Event()
        """Set once this owner has lost the key for good: revoked, expired during an outage, or taken by a later owner.
        """
        self._registered = False
        self.superseded = False
        """True once a later owner was found to hold the key."""

    def write(self, value: bytes, *, replace_lost: bool = True) -> None:
        """Write a new value as soon as the store is reachable. ``replace_lost`` False: a lost lease is not replaced."""
        self._leased.write(value, replace_lost=replace_lost)
        self._wake.set()

    def move(self, key: str, value: bytes) -> None:
        """Replace the key by another one as soon as the store is reachable."""
        self._leased.move(key, value)
        self._wake.set()

    def withdraw(self) -> None:
        """Revoke the lease as soon as the store is reachable, and do not register again."""
        self._leased.withdraw()
        self._wake.set()

    async def run(self) -> None:
        """Keep the lease alive until the key is lost for good; retry through outages of the store of any length."""
        waits, reasons = backoff(_RETRY_FIRST_S, _RETRY_MAX_S), OutageReasons()
        while True:
            self._wake.clear()
            try:
                step = await self._leased.step(time.monotonic())
            except LoadlineError as error:
                if reasons.is_new(str(error)):
                    _log.warning("registration_retried", key=self._leased.key, detail=str(error))
                delay_s = next(waits)
            else:
                self._log_step(step)
                reasons.end()
                waits = backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
                delay_s = 0.0 if step is LeaseStep.LOST else self._lease_ttl_s / 3
            if self._leased.gone:
                self.gone.set()
                return
            await wait_at_most(self._wake, delay_s)

    def _log_step(self, step: LeaseStep) -> None:
        if step is LeaseStep.RENEWED and not self._registered:
            _log.info("registered", key=self._leased.key)
        self._registered = step in {LeaseStep.RENEWED, LeaseStep.RESTORED}
        if step is LeaseStep.LOST:
            _log.warning("lease_lost", key=self._leased.key, replaced=not self._leased.gone)
        elif step is LeaseStep.RESTORED:
            remedy = "find out who else writes this key"
            _log.warning("registration_restored", key=self._leased.key, remedy=remedy)
        elif step is LeaseStep.SUPERSEDED:
            self.superseded = True
            remedy = "end this worker, or give each worker a name of its own"
            _log.error("registration_superseded", key=self._leased.key, remedy=remedy)


def readable_record(record: WorkerRecord) -> WorkerRecord:
    """Return a record that agents can read.

    Raises:
        ConfigError: They would refuse it, and count the worker as none.
    """
    refused = encode_readable(record)
    if isinstance(refused, Rejected):
        raise ConfigError(f"record of worker {record.worker!r:.100}", refused.detail, "Correct the WorkerRecord.")
    return record
