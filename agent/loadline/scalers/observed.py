"""Scaler for fleets whose replicas another autoscaler sets, such as an HPA on ``loadline_desired_replicas``.

    loadline scaler observed --config loadline.toml

It starts and stops no workers, and has none drained: the other autoscaler selects those that it removes. It accepts
each decision and completes it once the leader's status shows the decided number of ready workers; without it decisions
expire, each with an alarm and a pause.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from loadline.adapters import logs, signals
from loadline.client.received_decision import ReceivedDecision
from loadline.client.resources import bus_of, running, wait_until_stopped
from loadline.client.scaler import ScalerClient
from loadline.config import load
from loadline.core.vocabulary.status import AgentStatus
from loadline.ports import Bus
from loadline.scalers.config_file import selected_models
from loadline.scalers.desired_counts import DesiredCounts
from loadline.servers import NatsKnobs
from loadline.wire.codec import Rejected, decode_as
from loadline.wire.subjects import Subjects

_log = logs.bounded("observed_scaler")


class Followed(Struct, frozen=True):
    """Counts that another program reads from this one."""

    counts: DesiredCounts
    """Kept up to date."""
    obstacle: Callable[[str, str], str]
    """Returns why the count of a pool, given its model and name, is not applied; empty: no reason is known."""


class ObservedScaler:
    """Scaler that completes decisions based on the leader's status.

    Args:
        scaler: Source of decisions, entered.
        bus: Bus with the agents' status.
        root: Prefix of every NATS subject.
        followed: Counts to keep up to date; None: nobody reads them here.
    """

    def __init__(
        self, scaler: ScalerClient, bus: Bus, root: str = "loadline", followed: Followed | None = None
    ) -> None:
        self._scaler = scaler
        self._followed = followed
        self._bus = bus
        self._subjects = Subjects(root)
        self._open: dict[str, ReceivedDecision] = {}
        self._details: dict[str, str] = {}
        """Reason that was reported last, by model."""
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
            if self._followed is not None:
                self._followed.counts.apply_decision(received.decision)
            await self._scaler.accept(received, dict.fromkeys(received.targets, "unknown"))
            self._open[received.model], self._details[received.model] = received, ""
            self._changed.set()

    async def _answer(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            for model in list(self._open):
                await self._report(model)

    async def _report(self, model: str) -> None:
        """Complete the decision of a model if it is reached; else report a new reason why it is not."""
        received, ready = self._open[model], self._ready.get(model, {})
        observed = {pool: ready.get(pool, 0) for pool in received.targets}
        if all(observed[pool] == target.replicas for pool, target in received.targets.items()):
            del self._open[model]
            await self._scaler.complete(received, observed)
            _log.info("decision_done", decision=received.decision.decision_id, observed=observed)
        elif self._followed is not None:
            obstacles = {
                pool: self._followed.obstacle(model, pool)
                for pool, target in received.targets.items()
                if observed[pool] != target.replicas
            }
            detail = "; ".join(f"{pool}: {obstacle}" for pool, obstacle in obstacles.items() if obstacle)
            if detail != self._details[model]:
                self._details[model] = detail
                await self._scaler.progress(received, observed, detail)

    def _on_status(self, _subject: str, payload: bytes) -> None:
        status = decode_as(AgentStatus, payload)
        if isinstance(status, Rejected) or not status.leading:
            return
        if self._followed is not None:
            self._followed.counts.apply_status(status)
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
    followed: Followed | None = None,
) -> None:
    """Answer the decisions of some models until ``stop`` is set.

    Args:
        name: Name in the answers.
        models: The models.
        nats: Servers and login of NATS.
        stop: Ends it.
        root: Prefix of every NATS subject.
        followed: Counts to keep up to date; None: nobody reads them here.
    """
    async with (
        bus_of(None, nats, f"loadline-scaler-{name}") as bus,
        ScalerClient(name, models, bus=bus, root=root) as scaler,
        running(ObservedScaler(scaler, bus, root, followed).run(), f"{name} scaler") as answering,
    ):
        await wait_until_stopped(stop, answering)
