"""Handover of a demo worker's requests: the KV cache over a link in virtual time, the state over NATS."""

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from loadline.client.handover.held_requests import HeldRequests
from loadline.client.handover.messages import HandedRequest
from loadline.client.handover.source import StoppedRequest
from loadline.client.migratable_engine import MigrationRefused
from loadline.core.migration.requests import MigratableRequest
from loadline.demo.clock import ReplayClock
from loadline.demo.engine_host import EngineHost
from loadline.demo.protocol import Submission, pack, unpack
from loadline.sim.serving.transfer import TransferLink
from loadline.wire.messages import MigrateCommand


class DemoMigratableEngine:
    """``MigratableEngine`` around the engine of a demo worker.

    Messages take real time, so a handover stalls its request by that, plus a tick of the engine.

    Args:
        host: The engine.
        clock: Clock of virtual time.
        link: The link to other workers.
    """

    def __init__(self, host: EngineHost, clock: ReplayClock, link: TransferLink) -> None:
        self._host = host
        self._clock = clock
        self._link = link
        self._downtimes_ms: dict[str, float] = {}
        """Virtual time of the last part of a copy, by request."""

    @property
    def held_requests(self) -> HeldRequests:
        """Requests that the engine may run."""
        return self._host.held_requests

    def migratable_requests(self) -> Sequence[MigratableRequest]:
        """Return the requests in the engine, except those being handed over."""
        held = self.held_requests
        return [one for one in self._host.engine.migratable_requests() if held.hop(one.request_id) is not None]

    def has_room(self, kv_tokens: int) -> bool:
        """Return True if ``kv_tokens`` fit in addition to the used cache and the requests that wait to decode."""
        load, knobs = self._host.engine.load(), self._host.engine.knobs
        waiting = knobs.blocks(load.waiting_to_decode_tokens or 0)
        return knobs.blocks(kv_tokens) + (load.kv_blocks_used or 0) + waiting <= knobs.kv_blocks_total

    async def copy(self, request_id: str, _command: MigrateCommand) -> None:
        """Wait while the link copies all but the last part of the cache."""
        engine = self._host.engine
        itl_ms = engine.load().itl_ms
        copy = self._link.live_copy(engine.kv_tokens(request_id), 1.0 / itl_ms if itl_ms else 0.0)
        await asyncio.sleep(copy.copying_ms / 1_000 / self._clock.speed)
        self._downtimes_ms[request_id] = copy.downtime_ms

    async def stop(self, request_id: str, _command: MigrateCommand) -> StoppedRequest | None:
        """Remove a request from the engine; it continues once the last part of its cache has arrived."""
        downtime_ms = self._downtimes_ms.pop(request_id, 0.0)
        extracted = await self._host.extract(request_id)
        if extracted is None:
            return None
        state = Submission(extracted.request, extracted.at_ms + downtime_ms)
        return StoppedRequest(extracted.gateway, pack(state))

    def run(self, request: HandedRequest) -> None:
        """Run a request under its new hop."""
        submission = unpack(Submission, request.state)
        if submission is None:
            raise MigrationRefused("failed", f"the state of {request.request_id} cannot be read")
        resumed = replace(submission.request, hop=request.hop, migrations=request.migrations)
        self._host.run(replace(submission, request=resumed), request.frontend)

    def discard(self, request_id: str) -> None:
        """Drop a request."""
        self._downtimes_ms.pop(request_id, None)
        self._host.discard(request_id)
