"""Decisions of the leaders that the scaler can ask, as an observer of the whole world knows them."""

from typing import Final

from loadline.sim.chaos.scaler_faults import number_of
from loadline.sim.chaos.world import ChaosWorld
from loadline.sim.world.agent import SimulatedAgent
from loadline.sim.world.bus import BusConnection

_SAMPLE_MS: Final = 500.0
_LOSS_MAX: Final = 0.1
"""Loss of the bus above which a minute of requests may stay without an announcement: 1 in 500 at 0.5."""


class LeaderContact:
    """Leaders that the scaler can ask, and since when, sampled every 0.5 s.

    Args:
        world: World to observe.
    """

    def __init__(self, world: ChaosWorld) -> None:
        self._world = world
        self._broken_ms: dict[str, float] = {}
        self._sample()

    def number(self, model: str, for_ms: float) -> tuple[int, int]:
        """Return the number of the decision of the leader of a model.

        Args:
            model: Name of the model.
            for_ms: Time for which the leader must have been in contact; (0, 0): it has not.
        """
        leader = self._leader(model)
        entry = None if leader is None else leader.controller.state.ledger.entries.get(model)
        if entry is None or entry.decision is None or self._world.timeline.now_ms - self._broken_ms[model] < for_ms:
            return 0, 0
        return number_of(entry.decision)

    def _sample(self) -> None:
        timeline = self._world.timeline
        self._broken_ms |= {model: timeline.now_ms for model in self._world.models if self._leader(model) is None}
        timeline.call_later(_SAMPLE_MS, self._sample)

    def _leader(self, model: str) -> SimulatedAgent | None:
        """Return the only leader of a model if it and the scaler can exchange messages, and it may decide."""
        world = self._world
        leaders = world.leaders_of(world.scopes[model])
        if len(leaders) != 1 or world.bus.faults.loss > _LOSS_MAX or not _is_connected(world.scaler_bus):
            return None
        (leader,) = leaders
        state = leader.controller.state
        # A leader whose last decision has expired answers with another one, which it makes only if it may.
        may_decide = state.decisions_read and model not in state.paused and not state.stopping
        return leader if may_decide and _is_connected(leader.bus) and not leader.suspended else None


def _is_connected(connection: BusConnection) -> bool:
    return connection.reachable and connection.connected
