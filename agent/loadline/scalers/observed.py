"""Scaler for fleets whose replicas another autoscaler sets, such as an HPA on ``loadline_desired_replicas``.

    loadline scaler observed --config loadline.toml

It starts and stops no workers, and has none drained: the other autoscaler selects those that it removes. It accepts
each decision and completes it once the leader's status shows the decided number of ready workers; without it decisions
expire, each with an alarm and a pause.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from loadline.adapters import logs, signals
from loadline.client.resources import bus_of, running
from loadline.client.scaler import ReceivedDecision, ScalerClient
from loadline.config import load
from loadline.core.vocabulary.status import AgentStatus
from loadline.ports import Bus
from loadline.scalers.config_file import selected_models
from loadline.scalers.desired_counts import DesiredCounts
from loadline.servers import NatsKnobs
from loadline.wire.codec import Rejected, decode_as
from loadline.wire.subjects import Subjects

_log = logs.bounded("observed_scaler")


class ObservedScaler:
    """Scaler that completes decisions based on the leader's status.

    Args:
        scaler: Source of decisions, entered.
        bus: Bus with the agents' status.
        root: Prefix of every NATS subject.
        counts: Desired counts to keep up to date; None: nobody reads them.
    """

    def __init__(
        self, scaler: ScalerClient, bus: Bus, root: str = "loadline", counts: DesiredCounts | None = None
    ) -> None:
        self._scaler = scaler
        self._counts = counts
        self._bus = bus
        self._subjects = Subjects(root)
        self._open: dict[str, ReceivedDecision] = {}
        self._ready: dict[str, dict[str, int]] = {}
        """Ready workers by model and by the pool in which they were started."""
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Answer until cancelled."""
        await self._bus.subscribe(self._subjects.all_of("status"), self._on_status)
        async with asyncio.TaskGroup() as both:
            both.create_task(self._receive(), name="decisions")
            both.create_task(self._answer(), name="answers")

    async def _receive(self) -> None:
        async for received in self._scaler:
            if self._counts is not None:
                self._counts.apply_decision(received.decision)
            await self._scaler.accept(received, dict.fromkeys(received.targets, "unknown"))
            self._open[received.model] = received
            self._changed.set()

    async def _answer(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            for model in list(self._open):
                await self._complete_if_reached(model)

    async def _complete_if_reached(self, model: str) -> None:
        received, ready = self._open[model], self._ready.get(model, {})
        observed = {pool: ready.get(pool, 0) for pool in received.targets}
        if all(observed[pool] == target.replicas for pool, target in received.targets.items()):
            del self._open[model]
            await self._scaler.complete(received, observed)
            _log.info("decision_done", decision=received.decision.decision_id, observed=observed)

    def _on_status(self, _subject: str, payload: bytes) -> None:
        status = decode_as(AgentStatus, payload)
        if isinstance(status, Rejected) or not status.leading:
            return
        if self._counts is not None:
            self._counts.apply_status(status)
        # A part of a status covers only its own models, so the counts of the others are kept.
        self._ready |= {
            model.model: {pool.pool: pool.ready - pool.moved for pool in model.pools} for model in status.models
        }
        self._changed.set()


async def serve(path: Path, only: Sequence[str]) -> None:
    """Run until SIGTERM or SIGINT, for the models of an agent's configuration or some of them.

    Raises:
        ConfigError: The configuration is invalid, or a model is not configured.
    """
    config = load(path)
    models = selected_models(only, [model.name for model in config.models])
    stop = asyncio.Event()
    signals.install_handlers(stop.set)
    await observe("observed", models, config.nats, stop, root=config.agent.root)


async def observe(
    name: str,
    models: Sequence[str],
    nats: NatsKnobs,
    stop: asyncio.Event,
    *,
    root: str,
    counts: DesiredCounts | None = None,
) -> None:
    """Answer the decisions of some models until ``stop`` is set.

    Args:
        name: Name in the answers.
        models: The models.
        nats: Servers and login of NATS.
        stop: Ends it.
        root: Prefix of every NATS subject.
        counts: Desired counts to keep up to date; None: nobody reads them.
    """
    async with (
        bus_of(None, nats, f"loadline-scaler-{name}") as bus,
        ScalerClient(name, models, bus=bus, root=root) as scaler,
        running(ObservedScaler(scaler, bus, root, counts).run(), f"{name} scaler") as answering,
    ):
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({answering, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
