"""Simulated scaler of platforms that select the workers to remove by a rule of their own, which may change."""

from collections.abc import Callable, Mapping
from typing import Final

from loadline.core.vocabulary.decisions import ApplyStatus, PoolTarget, VictimRule
from loadline.scalers.platform import PoolObservation
from loadline.scalers.replica_plan import plan_replicas
from loadline.sim.world.scaler import SimulatedScaler, _ScaledPool
from loadline.sim.world.worker import SimulatedWorker
from loadline.wire.codec import Rejected, decode_as
from loadline.wire.messages import DecisionApplied, DrainReport, ScalingDecision

RULES: Final[tuple[VictimRule, ...]] = ("named", "newest", "highest_ordinal", "unknown")
_INTERVAL_MS: Final = 1_000.0


class RuleScaler(SimulatedScaler):
    """Scaler that plans as the shipped ones and removes workers by ``rule``; it declares ``declared``, if set."""

    rule: VictimRule = "named"
    declared: VictimRule | None = None
    start: Callable[[str, str, str], SimulatedWorker]
    """Function that starts a worker, given its model, pool and name; empty: any."""
    away = False
    """True while the scaler does not run; the platform goes on."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self._reported: set[tuple[str, int]] = set()
        self._deadlines_ms: dict[str, int] = {}
        self._places: dict[str, set[str]] = {}
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]  # the arguments of its base
        self.replicas: dict[str, int] = {}
        """Replicas that the platform was asked for, by pool; it restarts what ends."""
        self.removed: list[tuple[str, VictimRule, bool]] = []
        """Removed workers, each with the rule in force and True if it served."""

    @property
    def _declares(self) -> VictimRule:
        return self.declared or self.rule

    def _on_decision(self, subject: str, payload: bytes) -> None:
        if not self.away:
            super()._on_decision(subject, payload)

    def leave(self) -> None:
        """Stop the scaler; the platform goes on."""
        self.away = True

    def come_back(self) -> None:
        """Start the scaler again."""
        self.away = False

    def _accept(self, decision: ScalingDecision) -> None:
        removes = [one for one in decision.targets if one.victims or one.replicas < one.previous]
        if any(one.victim_rule != self._declares for one in removes):
            self._answer(decision, "refused", {}, "the platform has another rule")
            return
        self._deadlines_ms[decision.model] = int(self._timeline.now_ms) + decision.drain_ttl_ms
        super()._accept(decision)

    def _build_answer(
        self,
        decision: ScalingDecision,
        status: ApplyStatus,
        observed: object,
        detail: str,
        in_force: Mapping[str, int],
    ) -> DecisionApplied:
        counts = {target.pool: target.replicas for target in decision.targets} if observed else {}
        victims = {target.pool: self._declares for target in decision.targets}
        numbers = decision.decision_id, decision.model, decision.epoch, decision.sequence
        return DecisionApplied(*numbers, "scaler", status, counts, detail, victims, dict(in_force))

    def _reconcile(self) -> None:
        self._scheduled = True
        self._timeline.call_later(_INTERVAL_MS, self._reconcile)
        now_ms, done = int(self._timeline.now_ms), dict.fromkeys(self._unfinished, True)
        for pool in self._pools.values():
            self._remove_exited(pool, now_ms)
            asked = self.replicas.setdefault(f"{pool.model}/{pool.name}", len(pool.workers))
            removal: tuple[str, ...] = ()
            if pool.target is not None and not self.away:
                free, expired = self._free(pool.target), now_ms >= self._deadlines_ms.get(pool.model, now_ms + 1)
                seen = self._observe(pool, asked)
                plan = plan_replicas(self._declares, pool.target, free, seen, expired=expired)
                asked, removal = plan.replicas, plan.removal
                self.replicas[f"{pool.model}/{pool.name}"] = asked
                done[pool.model] = done.get(pool.model, True) and plan.done
            self._enforce(pool, asked, removal, now_ms)
        for model, decision in list(self._unfinished.items()):
            if done[model] and not self.away:
                del self._unfinished[model]
                self._answer(decision, "done", {"all": 0})

    def _on_drained(self, subject: str, payload: bytes) -> None:
        report = decode_as(DrainReport, payload, subject)
        if not isinstance(report, Rejected):  # remembered when the process has ended
            self._reported.add((report.worker, report.incarnation))

    def _free(self, target: PoolTarget) -> frozenset[str]:
        return frozenset(one.worker for one in target.victims if (one.worker, one.incarnation) in self._reported)

    def _observe(self, pool: _ScaledPool, asked: int) -> PoolObservation:
        unready = frozenset(name for name, one in pool.workers.items() if one.record.state == "starting")
        return PoolObservation(asked, len(pool.workers) - len(unready), frozenset(pool.workers), unready=unready)

    def _enforce(self, pool: _ScaledPool, replicas: int, removal: tuple[str, ...], now_ms: int) -> None:
        """Start what is missing, and remove what is beyond the count by the rule, as the platform does."""
        places = self._places.setdefault(f"{pool.model}/{pool.name}", set())
        places.update(pool.workers)
        for _ in range(replicas - len(pool.workers)):
            empty = sorted(places - pool.workers.keys(), key=_ordinal)
            name = empty[0] if empty and self.rule == "highest_ordinal" else ""  # a StatefulSet's pod keeps its name
            pool.add(self.start(pool.model, pool.name, name), now_ms)
        for name in self._order(pool, removal)[: max(0, len(pool.workers) - replicas)]:
            worker = pool.workers[name]
            self.removed.append((name, self.rule, worker.serving))
            worker.kill()
            places.discard(name)
            self._remove_exited(pool, now_ms)

    def _order(self, pool: _ScaledPool, removal: tuple[str, ...]) -> list[str]:
        """Return the workers of a pool in the order in which the platform removes them."""
        by_age = sorted(pool.workers, key=lambda name: (-pool.processes[name].incarnation, name))
        if self.rule == "named":
            return [*removal, *(name for name in by_age if name not in removal)]
        if self.rule == "highest_ordinal":
            return sorted(by_age, key=_ordinal, reverse=True)
        return by_age


def _ordinal(name: str) -> int:
    """Return the number of a name; a high one without a number: a platform knows the numbers of all its workers."""
    return int("".join(filter(str.isdigit, name)) or 10**9)
