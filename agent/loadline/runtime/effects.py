"""Execution of effects. Every effect that the core waits for is answered by an event, also if it fails."""

from collections.abc import Awaitable, Callable

from loadline.core.vocabulary.decisions import Decision, StoredDecision
from loadline.core.vocabulary.effects import (
    AnnounceDecision,
    AnyEffect,
    Campaign,
    CommitDecision,
    FitForecast,
    FollowReports,
    LeavePresence,
    RaiseAlarm,
    ReadDecisions,
    RemoveWorker,
    RenewLease,
    RenewPresence,
    Resign,
    SaveLearned,
    SendDrain,
    SendMigrate,
    SolveAllocation,
    WritePause,
)
from loadline.core.vocabulary.events import (
    AllocationFailed,
    AllocationSolved,
    AnyEvent,
    CampaignLost,
    CommitRefused,
    CommitUnknown,
    DecisionCommitted,
    DecisionsRead,
    DecisionsUnread,
    DrainAnswered,
    ForecastFailed,
    ForecastFitted,
    LeaseRenewalFailed,
    MigrationAnswered,
    PauseChanged,
    PresenceRenewed,
)
from loadline.errors import BusUnavailable, NoSubscriber, OutcomeUnknown, StoreDenied, StoreUnavailable
from loadline.ports import Bus, Compare, Fitter, Store, Write
from loadline.runtime.election import STORE_FAILURES, Election
from loadline.runtime.problem_log import Log, ProblemLog
from loadline.wire.codec import Rejected, decode_as, decode_decision, encode, encode_decision
from loadline.wire.keys import Keys
from loadline.wire.messages import DrainCommand, DrainReply, MigrateCommand, MigrateReply, ScalingDecision
from loadline.wire.subjects import Subjects
from loadline.wire.trace_context import trace_headers

DRAIN_TIMEOUT_S = 1.0
"""Timeout of a drain command; a worker answers in milliseconds, and the core retries."""
FIT_DEADLINE_S = 20.0
"""Deadline for one series. Selecting an ARIMA order takes 3 s, and six times that on a busy machine."""


FollowModels = Callable[[list[str]], Awaitable[None]]
"""Subscribes to the reports of models, and to no others."""


async def follow_nothing(_models: list[str]) -> None:
    """Keep the subscriptions of an agent that shares no models: it receives all reports."""


class EffectRunner:
    """Executor of effects on a bus, a store and a fitter. Each effect is a task, so a slow answer delays no other."""

    def __init__(
        self,
        *,
        agent: str,
        bus: Bus,
        store: Store,
        fitter: Fitter,
        subjects: Subjects,
        keys: Keys,
        put: Callable[[AnyEvent], None],
        log: Log,
        follow: FollowModels = follow_nothing,
        traced: bool = False,
    ) -> None:
        self._bus = bus
        self._store = store
        self._fitter = fitter
        self._subjects = subjects
        self._keys = keys
        self._put = put
        self._log = log
        self._traced = traced
        self._problems = ProblemLog(log)
        self._election = Election(agent, bus, store, keys, log, self._problems)
        self._follow = follow
        self._next_pauses: dict[str, WritePause | None] = {}
        """Pause to write next, by model whose pause is being written."""

    async def perform(self, effect: AnyEffect) -> None:
        """Execute an effect and emit the event that answers it."""
        try:
            await self._execute(effect)
        except Exception as error:  # noqa: BLE001 - an effect without an answer would hold a model for ever
            self._log.exception("effect_failed", effect=type(effect).__name__)
            answer = _failed(effect, f"{type(error).__name__}: {error}")
            if answer is not None:
                self._put(answer)

    async def _execute(self, effect: AnyEffect) -> None:  # noqa: C901, PLR0912 - one line for each effect
        match effect:
            case Campaign():
                self._put(await self._election.campaign(effect))
            case RenewLease():
                self._put(await self._election.renew(effect))
            case Resign(lease_id=lease_id):
                self._log.info("leadership_given_back")
                await self._election.revoke(lease_id)
            case RenewPresence():
                self._put(await self._election.renew_presence(effect))
            case LeavePresence(lease_id=lease_id):
                await self._election.revoke(lease_id)
            case FollowReports(models=models):
                await self._follow(models)
            case ReadDecisions():
                self._put(await self._read_decisions(effect))
            case CommitDecision():
                self._put(await self._commit(effect))
            case AnnounceDecision():
                await self._announce(effect)
            case SendDrain():
                self._put(await self._send_drain(effect))
            case SendMigrate():
                self._put(await self._send_migrate(effect))
            case RemoveWorker():
                await self._remove_worker(effect)
            case FitForecast():
                self._put(await self._fit(effect))
            case SolveAllocation():
                self._put(await self._solve(effect))
            case WritePause():
                await self._write_pauses(effect)
            case SaveLearned():
                await self._save(effect)
            case RaiseAlarm(kind=kind, model=model, text=text):
                self._log.warning("alarm", kind=kind, model=model, text=text)

    async def _remove_worker(self, effect: RemoveWorker) -> None:
        key = self._keys.worker(effect.model, effect.pool, effect.worker)
        try:
            await self._store.commit([Compare(key, "lease", effect.lease_id)], [Write(key, None)])
        except STORE_FAILURES as error:
            self._log.info("worker_not_removed", worker=effect.worker, detail=str(error))

    async def _read_decisions(self, effect: ReadDecisions) -> AnyEvent:
        try:
            found = await self._store.read(self._keys.decisions)
        except STORE_FAILURES as error:
            self._problems.report("decisions_unread", str(error))
            return DecisionsUnread(effect.request, str(error))
        self._problems.report("decisions_unread", "")
        decisions: list[StoredDecision] = []
        unreadable: dict[str, int] = {}
        for entry in found.entries:
            model = self._model_of(entry.key)
            decision = decode_decision(entry.value)
            if isinstance(decision, Decision) and decision.model == model:
                decisions.append(StoredDecision(decision, entry.mod_revision))
            elif model is not None:
                unreadable[model] = entry.mod_revision
        return DecisionsRead(effect.request, decisions, found.revision, unreadable)

    def _model_of(self, key: str) -> str | None:
        try:
            _, model = self._keys.split(key)
        except ValueError:
            return None  # not a key of ours
        return model

    async def _commit(self, effect: CommitDecision) -> AnyEvent:
        decision = effect.decision
        key = self._keys.decision(decision.model)
        fence = Compare(self._keys.leader(effect.scope), "lease", effect.lease_id)
        order = Compare(key, "mod", effect.expected_revision)
        value = encode_decision(decision)
        if isinstance(value, Rejected):  # once committed, no agent could read it, and the model would be held
            text = f"a decision for {decision.model} is not committed: {value.detail}"
            return CommitRefused(decision.decision_id, decision.model, fenced=False, detail=text)
        try:
            outcome = await self._store.commit([fence, order], [Write(key, value)])
        except OutcomeUnknown as error:
            return CommitUnknown(decision.decision_id, decision.model, str(error))
        except (StoreUnavailable, StoreDenied) as error:
            return CommitRefused(decision.decision_id, decision.model, fenced=False, detail=str(error))
        if not outcome.committed:
            return CommitRefused(
                decision.decision_id, decision.model, fenced=True, detail="the epoch or the revision has changed"
            )
        targets = {target.pool: target.replicas for target in decision.targets}
        self._log.info(
            "decision_committed",
            decision=decision.decision_id,
            model=decision.model,
            sequence=decision.sequence,
            targets=targets,
            reasons=decision.reasons,
        )
        return DecisionCommitted(decision.decision_id, decision.model, outcome.revision)

    async def _announce(self, effect: AnnounceDecision) -> None:
        decision = effect.decision
        fields = {name: getattr(decision, name) for name in decision.__struct_fields__}
        message = ScalingDecision(**fields, ttl_ms=effect.ttl_ms)
        try:
            headers = trace_headers(decision.decision_id) if self._traced else None
            await self._bus.publish(self._subjects.decision(decision.model), encode(message), headers)
        except BusUnavailable as error:
            # The core announces it again.
            self._log.info("not_announced", decision=decision.decision_id, detail=str(error))

    async def _send_drain(self, effect: SendDrain) -> AnyEvent:
        command = DrainCommand(
            drain_id=effect.drain_id,
            model=effect.model,
            pool=effect.pool,
            worker=effect.worker,
            role=effect.role,
            incarnation=effect.incarnation,
            epoch=effect.epoch,
            ttl_ms=effect.ttl_ms,
        )
        try:
            subject = self._subjects.drain(effect.model, effect.pool, effect.worker)
            former = self._subjects.by_name("drain", effect.worker)
            payload = await self._request(subject, former, encode(command), DRAIN_TIMEOUT_S)
        except BusUnavailable as error:
            return _drain_answer(effect, accepted=None, detail=str(error))
        reply = decode_as(DrainReply, payload)
        if isinstance(reply, Rejected):
            return _drain_answer(effect, accepted=None, detail=reply.detail)
        return _drain_answer(effect, accepted=reply.accepted, detail=reply.detail)

    async def _send_migrate(self, effect: SendMigrate) -> AnyEvent:
        migration = effect.migration
        fields = {name: getattr(migration, name) for name in migration.__struct_fields__}
        command = MigrateCommand(**fields, ttl_ms=effect.ttl_ms)
        source = migration.source
        subject = self._subjects.migrate(migration.model, source.pool, source.worker)
        former = self._subjects.by_name("migrate", source.worker)
        try:
            payload = await self._request(subject, former, encode(command), effect.timeout_ms / 1_000)
        except BusUnavailable as error:
            return MigrationAnswered(migration.command_id, migration.model, None, detail=str(error))
        reply = decode_as(MigrateReply, payload)
        if isinstance(reply, Rejected):
            return MigrationAnswered(
                migration.command_id, migration.model, None, detail=f"invalid reply: {reply.detail}"
            )
        if reply.command_id != migration.command_id:
            return MigrationAnswered(
                migration.command_id, migration.model, None, detail=f"the reply is for {reply.command_id}"
            )
        if reply.accepted and not reply.requests:
            return MigrationAnswered(migration.command_id, migration.model, accepted=False, reason="nothing_to_move")
        return MigrationAnswered(
            migration.command_id,
            migration.model,
            reply.accepted,
            reply.reason,
            reply.requests,
            reply.tokens,
            reply.detail,
        )

    async def _request(self, subject: str, former: str, payload: bytes, timeout_s: float) -> bytes:
        """Send a request to a worker; on the former subject, if only that has a subscriber."""
        try:
            return await self._bus.request(subject, payload, timeout_s)
        except NoSubscriber:
            return await self._bus.request(former, payload, timeout_s)

    async def _fit(self, effect: FitForecast) -> AnyEvent:
        forecasts = [await self._fitter.fit(query, FIT_DEADLINE_S) for query in effect.queries]
        return ForecastFitted(effect.model, effect.request, forecasts)

    async def _save(self, effect: SaveLearned) -> None:
        fence = Compare(self._keys.leader(effect.scope), "lease", effect.lease_id)
        try:
            await self._store.commit([fence], [Write(self._keys.learned(effect.model), encode(effect.learned))])
        except STORE_FAILURES as error:
            self._problems.report("learned_not_saved", str(error))  # the core tries again
        else:
            self._problems.report("learned_not_saved", "")

    async def _solve(self, effect: SolveAllocation) -> AnyEvent:
        found = await self._fitter.solve(effect.problem, effect.time_limit_ms / 1_000)
        if found is None:
            return AllocationFailed(effect.request, "no allocation was found in time")
        return AllocationSolved(effect.request, found)

    async def _write_pauses(self, effect: WritePause) -> None:
        """Write a pause, and then the newest one that was requested for the model meanwhile.

        Etcd applies two writes at once in any order. Without a lock, as this runs in virtual time too.
        """
        model = effect.model
        if model in self._next_pauses:
            self._next_pauses[model] = effect
            return
        following: WritePause | None = effect
        try:
            while following is not None:
                self._next_pauses[model] = None
                await self._write_pause(following)
                following = self._next_pauses[model]
        finally:
            del self._next_pauses[model]

    async def _write_pause(self, effect: WritePause) -> None:
        fence = Compare(self._keys.leader(effect.scope), "lease", effect.lease_id)
        write = Write(self._keys.pause(effect.model), effect.by.encode() if effect.paused else None)
        try:
            try:
                outcome = await self._store.commit([fence], [write])
            except OutcomeUnknown:
                outcome = await self._store.commit([fence], [write])  # a second time it changes nothing
        except Exception as error:  # noqa: BLE001 - the next pause of the model waits for this one
            problem = str(error)
        else:
            problem = "" if outcome.committed else "this agent no longer leads"
        if problem:
            self._log.error("pause_not_written", model=effect.model, detail=problem, remedy="try again")
        else:
            self._put(PauseChanged(effect.model, effect.paused, effect.by, outcome.revision, effect.request))


def _drain_answer(effect: SendDrain, *, accepted: bool | None, detail: str) -> DrainAnswered:
    return DrainAnswered(effect.model, effect.pool, effect.worker, effect.drain_id, accepted, detail)


def _failed(effect: AnyEffect, detail: str) -> AnyEvent | None:  # noqa: PLR0911 - one for each effect
    """Return the event that answers an effect whose execution raised an unexpected exception."""
    match effect:
        case Campaign(scope=scope):
            return CampaignLost(scope, "", detail)
        case RenewLease(scope=scope, lease_id=lease_id):
            return LeaseRenewalFailed(scope, lease_id, lost=False, detail=detail)
        case RenewPresence():
            return PresenceRenewed(0)
        case ReadDecisions(request=request):
            return DecisionsUnread(request, detail)
        case CommitDecision(decision=decision):
            return CommitUnknown(decision.decision_id, decision.model, detail)
        case SendDrain():
            return _drain_answer(effect, accepted=None, detail=detail)
        case SendMigrate(migration=migration):
            return MigrationAnswered(migration.command_id, migration.model, None, detail=detail)
        case FitForecast(model=model, request=request):
            return ForecastFailed(model, request, detail)
        case SolveAllocation(request=request):
            return AllocationFailed(request, detail)
    return None
