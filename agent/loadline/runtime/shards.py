"""The runtimes of one agent: one for each shard of its models; an agent that shares nothing has one."""

import asyncio
from collections.abc import Sequence

import msgspec
from msgspec import Raw

from loadline.core.state.agent_state import AgentState
from loadline.core.state.partition import moved_models, partition, shard_of_model, split
from loadline.core.state.settings import Settings
from loadline.core.vocabulary.events import AnyEvent, SettingsChanged
from loadline.errors import ConfigError
from loadline.runtime.feeds import Feeds, KeyRouter
from loadline.runtime.loop import Runtime

_MOVED_MAX = 8
"""Moved models that a refusal names."""


class SharedFeeds:
    """Feeds of shards, and the partition of models by which they are fed."""

    def __init__(self, feeds: Feeds, router: KeyRouter) -> None:
        self.feeds = feeds
        self.router = router


class Shards:
    """Runtimes of one agent.

    Args:
        runtimes: Runtime of each shard, in order.
        sharing: Feeds of the shards; None: there is one, which feeds itself.
    """

    def __init__(self, runtimes: Sequence[Runtime], sharing: SharedFeeds | None) -> None:
        self.runtimes = runtimes
        self._sharing = sharing

    @property
    def first(self) -> Runtime:
        """The first runtime, whose connections and agent are those of all."""
        return self.runtimes[0]

    @property
    def shared(self) -> bool:
        """True if the agent shares its models with others."""
        return self._sharing is not None

    @property
    def leading(self) -> list[Runtime]:
        """Runtimes that lead their models."""
        return [one for one in self.runtimes if one.controller.leading]

    @property
    def shown(self) -> list[Runtime]:
        """Runtimes whose models the agent reports: those that lead, or the only one."""
        return self.leading if self.shared else list(self.runtimes)

    @property
    def states(self) -> list[AgentState]:
        """States of the runtimes that are shown."""
        return [one.controller.state for one in self.shown]

    @property
    def models(self) -> int:
        """Number of configured models, whoever leads them."""
        return sum(len(one.controller.settings.models) for one in self.runtimes)

    def of_model(self, model: str) -> Runtime | None:
        """Return the runtime of a model; None: it is not configured."""
        return next((one for one in self.runtimes if model in one.controller.state.fleet.models), None)

    def answers_for(self, model: str) -> bool:
        """Return True if this agent answers requests about a model, and False if another one leads it.

        Agents may have different models, such as while each reads a new file. So one that does not know a model leaves
        it to the leader of the shard to which its name belongs, if there is one: no other agent can lead it, because
        models are in other shards only for limited GPUs, and agents that disagree about those never lead together.
        """
        runtime = self.of_model(model)
        if runtime is not None:
            return runtime.controller.leading
        controller = self.runtimes[shard_of_model(model, len(self.runtimes))].controller
        return controller.leading or not controller.state.leadership.leader

    @property
    def turns(self) -> int:
        """Number of turns so far."""
        return sum(one.turns for one in self.runtimes)

    @property
    def frames(self) -> int:
        """Number of frames processed so far."""
        return sum(one.frames for one in self.runtimes)

    @property
    def frames_dropped(self) -> int:
        """Number of frames that found no room."""
        return sum(one.inbox.dropped for one in self.runtimes)

    def put(self, event: AnyEvent) -> None:
        """Queue an event that concerns the whole agent."""
        if type(event) is SettingsChanged and self._sharing is not None:
            self._change_settings(event, self._sharing)
        else:
            self.first.inbox.put(event)

    def check(self, settings: Settings) -> None:
        """Check that settings move no models between shards, which others may lead meanwhile.

        Raises:
            ConfigError: They move some.
        """
        if self._sharing is None:
            return
        moved = moved_models(self._sharing.router.placed, partition(settings))
        if moved:
            names = ", ".join(moved[:_MOVED_MAX]) + (", ..." if len(moved) > _MOVED_MAX else "")
            problem = f"the limited GPUs of {names} are others now, which moves them between shards"
            raise ConfigError("models", problem, "Restart all agents.")

    def _change_settings(self, event: SettingsChanged, sharing: SharedFeeds) -> None:
        """Give each shard its part of new settings, which ``check`` has passed."""
        settings = msgspec.json.decode(event.settings, type=Settings)
        added = partition(settings).keys() - sharing.router.placed.keys()
        sharing.router.update(settings)
        for runtime, part in zip(self.runtimes, split(settings), strict=True):
            runtime.inbox.put(SettingsChanged(Raw(msgspec.json.encode(part)), event.restart_for))
        if added:
            sharing.feeds.reread()  # their workers may be registered

    async def run(self) -> None:
        """Run until ``stop``; return when all leases are returned."""
        if self._sharing is None:
            await self.first.run()
            return
        feeding = asyncio.create_task(self._sharing.feeds.run())
        running = asyncio.create_task(self._run_all())
        try:
            await asyncio.wait([feeding, running], return_when=asyncio.FIRST_COMPLETED)
            if feeding.done():
                feeding.result()  # an exception ends the agent with its reason
            await running
        finally:
            feeding.cancel()
            running.cancel()
            await asyncio.gather(feeding, running, return_exceptions=True)

    async def _run_all(self) -> None:
        runs = [asyncio.create_task(one.run()) for one in self.runtimes]
        try:
            await asyncio.gather(*runs)
        finally:
            for run in runs:
                run.cancel()
            await asyncio.gather(*runs, return_exceptions=True)

    def stop(self) -> None:
        """Request an orderly shutdown; idempotent."""
        for one in self.runtimes:
            one.stop()
