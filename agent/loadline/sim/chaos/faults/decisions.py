"""Decisions with numbers that the present leader does not have: forged ones, and those of a replaced store."""

from typing import Final

from msgspec.structs import replace

from loadline.core.decisions.ledger import decision_id
from loadline.ports import Unsubscribe
from loadline.sim.chaos.fault_injector import FaultInjector, Undo, no_undo, pick
from loadline.sim.chaos.plan import Fault
from loadline.sim.chaos.world import ChaosWorld
from loadline.sim.world.tasks import VirtualTask
from loadline.wire.codec import encode
from loadline.wire.messages import AnnounceReply, ScalingDecision
from loadline.wire.subjects import Subjects

_SUBJECTS: Final = Subjects("loadline")
_FORGED: Final = 2**53
_TTL_MS: Final = 40_000
_INTERVAL_MS: Final = 10_000.0
_ANNOUNCED_MS: Final = 100.0


def number_forged(injector: FaultInjector, fault: Fault) -> Undo:
    """Announce an expired decision of a number that no leader reaches: it blocks the scaler, and changes nothing."""
    world = injector.world
    for _, decision in pick(sorted(world.scaler_bus.in_force.items()), fault.level):
        _announce(world, replace(decision, decision_id="f" * 16, epoch=_FORGED, sequence=_FORGED, ttl_ms=0))
    return no_undo


def former_leader(injector: FaultInjector, fault: Fault) -> Undo:
    """Let the leader of an earlier epoch, whose store was replaced by a backup, decide on a model and answer for it."""
    for model, decision in pick(sorted(injector.world.scaler_bus.in_force.items()), fault.level):
        return _FormerLeader(injector.world, model, decision.epoch - 1).stop
    return no_undo


class _FormerLeader:
    """Leader of an earlier epoch. It decides on the counts in force, so that the fleet is right if that is applied.

    Args:
        world: World whose scaler it addresses.
        model: Model on which it decides every 10 s.
        epoch: Its epoch.
    """

    def __init__(self, world: ChaosWorld, model: str, epoch: int) -> None:
        self._world = world
        self._model = model
        self._number = epoch, 2**32  # above all sequences of that epoch
        self._unsubscribe: Unsubscribe | None = None
        VirtualTask(self._serve())
        self._decide()

    def stop(self) -> None:
        """Neither decide nor answer any more."""
        VirtualTask(self._end())

    async def _end(self) -> None:
        unsubscribe, self._unsubscribe = self._unsubscribe, None
        if unsubscribe is not None:
            await unsubscribe()

    async def _serve(self) -> None:
        self._unsubscribe = await self._world.rogue.answer(_SUBJECTS.api("announce"), self._answer)

    async def _answer(self, payload: bytes) -> bytes:
        del payload
        self._world.timeline.call_later(_ANNOUNCED_MS, self._announce)
        return encode(AnnounceReply(accepted=True))

    def _decide(self) -> None:
        if self._unsubscribe is not None:
            self._number = self._number[0], self._number[1] + 1
            self._announce()
            self._world.timeline.call_later(_INTERVAL_MS, self._decide)

    def _announce(self) -> None:
        epoch, sequence = self._number
        in_force, name = self._world.scaler_bus.in_force[self._model], decision_id(self._model, epoch, sequence)
        _announce(self._world, replace(in_force, decision_id=name, epoch=epoch, sequence=sequence, ttl_ms=_TTL_MS))


def _announce(world: ChaosWorld, decision: ScalingDecision) -> None:
    if world.rogue.connected:
        world.rogue.publish_now(_SUBJECTS.decision(decision.model), encode(decision))
