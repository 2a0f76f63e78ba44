"""A scaler's connection to the bus in its moods: what it hears comes late, what it says is kept back or untrue."""

from functools import partial
from typing import Final, Literal

from msgspec.structs import replace

from loadline.ports import Offer
from loadline.sim.world.bus import BusConnection, VirtualBus
from loadline.wire.codec import Rejected, decode_as, encode
from loadline.wire.messages import DecisionApplied, ScalingDecision

ScalerFault = Literal["good", "slow", "mute", "refuses", "lies", "contradicts", "repeats"]
_SLOW_MS: Final = 6_000.0
_KEPT: Final = 8


class FaultyScalerConnection(BusConnection):
    """What stands between a scaler that conforms and the bus."""

    def __init__(self, bus: VirtualBus) -> None:
        super().__init__(bus)
        self.fault: ScalerFault = "good"
        self.decisions: dict[str, ScalingDecision] = {}
        """The newest decision of each model that was heard."""
        self.accepted: dict[str, tuple[int, int]] = {}
        """The newest (epoch, sequence) of each model that it said it had accepted."""
        self.regression = ""
        """How it once accepted what was older than what it had accepted; empty: it never did."""
        self._sent: list[tuple[str, bytes]] = []

    async def subscribe(self, subject: str, offer: Offer) -> None:
        """Hand every frame on, later when it is slow."""

        def hear(subject: str, payload: bytes) -> None:
            heard = decode_as(ScalingDecision, payload)
            if not isinstance(heard, Rejected):
                self.decisions[heard.model] = heard
            wait_ms = _SLOW_MS if self.fault == "slow" else 0.0
            self._bus.timeline.call_later(wait_ms, partial(offer, subject, payload))

        await super().subscribe(subject, hear)

    def publish_now(self, subject: str, payload: bytes) -> None:
        """Say what the mood makes of it."""
        self._check_order(payload)
        self._sent = [*self._sent[-_KEPT:], (subject, payload)]
        match self.fault:
            case "mute":
                return
            case "refuses":
                super().publish_now(subject, _with(payload, status="refused", detail="no capacity"))
                return
            case "lies" | "contradicts":
                super().publish_now(subject, payload)
                super().publish_now(subject, self._false_answer(payload))
                return
            case "repeats":
                for old in self._sent[:-1]:
                    super().publish_now(*old)
        super().publish_now(subject, payload)

    def _check_order(self, payload: bytes) -> None:
        answer = decode_as(DecisionApplied, payload)
        if isinstance(answer, Rejected) or answer.status != "accepted":
            return
        number = (answer.epoch, answer.sequence)
        before = self.accepted.get(answer.model, (0, 0))
        if number < before:
            self.regression = f"{answer.model}: accepted {number} after {before}"
        self.accepted[answer.model] = max(number, before)

    def _false_answer(self, payload: bytes) -> bytes:
        """It is done, says one who has done nothing; or that it is done and something else was."""
        answer = decode_as(DecisionApplied, payload)
        decision = None if isinstance(answer, Rejected) else self.decisions.get(answer.model)
        targets = decision.targets if decision else ()
        wrong = int(self.fault == "contradicts")
        return _with(payload, status="done", observed={target.pool: target.replicas + wrong for target in targets})


def _with(payload: bytes, **changes: object) -> bytes:
    answer = decode_as(DecisionApplied, payload)
    return payload if isinstance(answer, Rejected) else encode(replace(answer, **changes))
