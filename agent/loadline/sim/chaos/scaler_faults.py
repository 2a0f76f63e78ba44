"""Bus connection of a scaler with faults: delayed input, and suppressed, false or repeated answers."""

from collections.abc import Callable
from typing import Final, Literal

from msgspec.structs import replace

from loadline.client.fence import CHALLENGE_S
from loadline.core.vocabulary.decisions import Decision
from loadline.ports import FrameHandler, Unsubscribe
from loadline.sim.chaos.committed_decisions import unknown_shrinks
from loadline.sim.world.bus import BusConnection, VirtualBus
from loadline.wire.codec import Rejected, decode_as, encode
from loadline.wire.messages import DecisionApplied, ScalingDecision

ScalerFault = Literal["none", "slow", "silent", "refuses", "false_done", "wrong_counts", "repeats"]
APPLYING: Final[frozenset[ScalerFault]] = frozenset({"none", "slow", "silent", "repeats"})
"""Faults of a scaler that applies what it accepts."""
_SLOW_MS: Final = 6_000.0
_SENT_MAX: Final = 8
_FOUND_MS: Final = CHALLENGE_S * 1_000 + 5_000
"""Time in which a scaler that has lowered its fence, and asks each minute, finds a leader that has returned."""


class FaultyScalerConnection(BusConnection):
    """Connection of a conforming scaler that can be made to misbehave."""

    def __init__(self, bus: VirtualBus) -> None:
        super().__init__(bus)
        self.fault: ScalerFault = "none"
        self.decisions: dict[str, ScalingDecision] = {}
        """Newest decision of each model that it received."""
        self.accepted: dict[str, tuple[int, int]] = {}
        """Newest (epoch, sequence) of each model that the scaler accepted."""
        self.violations: list[tuple[str, str]] = []
        """Invariants that its answers violate, with details."""
        self.in_force: dict[str, ScalingDecision] = {}
        """Newest decision of each model that the scaler applies."""
        self.askable: Callable[[str, float], tuple[int, int]] = lambda _model, _for_ms: (0, 0)
        """Returns the number of the decision of a leader that the scaler can ask for a time; (0, 0): it cannot."""
        self._received: dict[str, ScalingDecision] = {}
        self._current_ms: dict[str, float] = {}
        """Last arrival of a decision of each model that was not older than the newest accepted one."""
        self._sent: list[tuple[str, bytes]] = []

    async def subscribe(self, subject: str, offer: FrameHandler) -> Unsubscribe:
        """Subscribe; deliver late while the fault is ``slow``."""

        def receive(subject: str, payload: bytes) -> None:
            decision = decode_as(ScalingDecision, payload)
            if not isinstance(decision, Rejected):
                self.decisions[decision.model] = self._received[decision.decision_id] = decision

            def arrive() -> None:
                if not isinstance(decision, Rejected) and number_of(decision) >= self._accepted(decision.model):
                    self._current_ms[decision.model] = self._bus.timeline.now_ms
                offer(subject, payload)

            self._bus.timeline.call_later(_SLOW_MS if self.fault == "slow" else 0.0, arrive)

        return await super().subscribe(subject, receive)

    def publish_now(self, subject: str, payload: bytes) -> None:
        """Publish an answer as the current fault changes it."""
        self._check(payload)
        self._sent = [*self._sent[-_SENT_MAX:], (subject, payload)]
        match self.fault:
            case "silent":
                return
            case "refuses":
                super().publish_now(subject, _with(payload, status="refused", detail="no capacity"))
                return
            case "false_done" | "wrong_counts":
                super().publish_now(subject, payload)
                super().publish_now(subject, self._false_answer(payload))
                return
            case "repeats":
                for old in self._sent[:-1]:
                    super().publish_now(*old)
        super().publish_now(subject, payload)

    def _accepted(self, model: str) -> tuple[int, int]:
        return self.accepted.get(model, (0, 0))

    def _check(self, payload: bytes) -> None:
        """Check an acceptance: it may follow the one before, and its leader knows all workers that it ends."""
        answer = decode_as(DecisionApplied, payload)
        if isinstance(answer, Rejected) or answer.status != "accepted":
            return
        number, before = number_of(answer), self._accepted(answer.model)
        silent_ms = self._bus.timeline.now_ms - self._current_ms.get(answer.model, 0.0)
        known = before if silent_ms < CHALLENGE_S * 1_000 else (0, 0)
        known = max(known, self.askable(answer.model, _FOUND_MS))
        if number < known:
            self.violations.append(("I2-applied", f"{answer.model}: accepted {number}, its leader has {known}"))
        self.accepted[answer.model] = number
        if number == before or self.fault not in APPLYING:
            return  # an answer that is repeated, perhaps to a decision that was not applied
        decision, in_force = self._received[answer.decision_id], self.in_force.get(answer.model)
        self.in_force[answer.model] = decision
        for pool, counts in (unknown_shrinks(in_force, decision) if in_force is not None else {}).items():
            self.violations.append(("I16-known", f"{answer.model} {pool}: {counts}"))

    def _false_answer(self, payload: bytes) -> bytes:
        """Return an answer ``done`` without the work, with the decided or with wrong counts."""
        answer = decode_as(DecisionApplied, payload)
        decision = None if isinstance(answer, Rejected) else self.decisions.get(answer.model)
        targets = decision.targets if decision else ()
        error = int(self.fault == "wrong_counts")
        return _with(payload, status="done", observed={target.pool: target.replicas + error for target in targets})


def number_of(message: Decision | ScalingDecision | DecisionApplied) -> tuple[int, int]:
    """Return the epoch and sequence of a decision, or of the decision that is answered."""
    return message.epoch, message.sequence


def _with(payload: bytes, **changes: object) -> bytes:
    answer = decode_as(DecisionApplied, payload)
    return payload if isinstance(answer, Rejected) else encode(replace(answer, **changes))
