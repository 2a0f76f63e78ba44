"""Agent of ``loadline step`` for external simulators: the production agent in their virtual time."""

import json
from pathlib import Path

import msgspec
import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from msgspec import Raw

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.decisions import Decision
from loadline.core.vocabulary.migrations import MigrationReportPhase
from loadline.core.vocabulary.reasons import ReasonCode
from loadline.core.vocabulary.rejections import Rejection
from loadline.errors import DataError
from loadline.ports import Write
from loadline.runtime.turns import FRAME_KINDS
from loadline.sim.step import JUMP_MAX_MS, Stepper
from loadline.sim.world.agent import SimulatedAgent
from loadline.sim.world.bus import VirtualBus
from loadline.sim.world.store import VirtualStore
from loadline.sim.world.timeline import START_MS, Timeline
from loadline.wire.codec import encode
from loadline.wire.keys import Keys
from loadline.wire.messages import DecisionApplied, DrainCommand, DrainReply, MigrateCommand, ScalingDecision
from loadline.wire.steps import StepInput, StepItem, StepOutput, encode_step
from tests.support.step_simulator import StepSimulator, frame, load, record, replicas, settings

PLAYED_S = 600
SCHEMAS = Path(__file__).parents[3] / "schemas"


def moving() -> Stepper:
    """Return an agent that migrates requests from full workers to others."""
    knobs = MigrationKnobs(
        enabled=True,
        policies=("neutral_load",),
        neutral_load_threshold=0.5,
        load_balance_threshold=0.1,
    )
    pools = (PoolKnobs("engine", "aggregated", replicas_max=6),)
    return Stepper(Settings("agent-1", "all", (ModelKnobs("llama", pools, migration=knobs),)))


def fill(worker: str, sequence: int, used: int, running: int) -> StepItem:
    """Report the used tokens of a worker, of 1,000."""
    slots = {"migration_slots_in": 4, "migration_slots_out": 4}
    cache = {"kv_blocks_used": used, "kv_blocks_total": 1_000, "decode_tokens": used, "running_requests": running}
    return load(worker, sequence, **cache, **slots)


def unbalanced(stepper: Stepper) -> StepOutput:
    """Register a full and an empty worker."""
    stepper.step(StepInput(0, [record(worker, block_size_tokens=1) for worker in ("full", "empty")]))
    return stepper.step(StepInput(1_000, [fill("full", 0, 900, 9), fill("empty", 0, 100, 1)]))


def report_migration(command: MigrateCommand, phase: MigrationReportPhase, **counts: int) -> StepItem:
    """Report the progress of a migration."""
    names = ("command_id", "model", "epoch", "source", "destination", "trigger")
    step_outputs = {name: getattr(command, name) for name in names} | {"phase": phase, "requests": 1} | counts
    return frame(f"migration.{command.source.worker}", msgspec.to_builtins(step_outputs))


@pytest.fixture
def stepper() -> Stepper:
    return Stepper(settings())


def run_simulator(start_ms: int = 0, **knobs: int) -> StepSimulator:
    simulator = StepSimulator(Stepper(settings(**knobs)).step, start_ms)
    simulator.run(PLAYED_S)
    return simulator


def reasons(answer: StepOutput) -> list[ReasonCode]:
    return [reason.code for hold in answer.holds for reason in hold.reasons]


def test_a_fleet_grows_with_its_load_and_shrinks_after_it_without_lost_requests() -> None:
    answers = run_simulator().outputs
    counts = replicas(answers)
    assert max(counts) > 3
    assert counts[-1] < max(counts)
    assert [drain.worker for answer in answers for drain in answer.drains]
    assert [answer for answer in answers if answer.rejected or answer.alarms] == []


@pytest.mark.parametrize("knobs", [{}, {"cooldown_up_ms": 3_600_000, "cooldown_down_ms": 3_600_000}])
def test_the_output_does_not_depend_on_the_start_time(knobs: dict[str, int]) -> None:
    def shifted(simulator: StepSimulator, shift: int) -> list[object]:
        answers = msgspec.to_builtins(simulator.outputs)
        for answer in answers:
            answer["next_wake_ms"] -= shift
            for decision in answer["decisions"]:
                decision["issued_at_ms"] -= shift
                decision["expires_at_ms"] -= shift
                del decision["epoch"], decision["decision_id"]  # the epoch is the time of the campaign
            for drain in answer["drains"]:
                del drain["epoch"], drain["drain_id"]
            for hold in answer["holds"]:
                hold["at_ms"] -= shift
        return list(answers)

    assert shifted(run_simulator(0, **knobs), 0) == shifted(run_simulator(START_MS, **knobs), START_MS)


def test_decisions_equal_those_of_an_agent_on_a_bus() -> None:
    simulator = run_simulator(START_MS)
    timeline = Timeline()
    bus, store = VirtualBus(timeline, latency_ms=0.0), VirtualStore(timeline, latency_ms=0.0)
    others, keys = bus.connection(), Keys("default")
    decided: dict[str, Decision] = {}
    drained: list[DrainCommand] = []

    def receive(_subject: str, payload: bytes) -> None:
        decision = msgspec.json.decode(payload, type=ScalingDecision)
        if decided.setdefault(decision.decision_id, decision) is decision:
            answer = DecisionApplied(
                decision.decision_id, decision.model, decision.epoch, decision.sequence, "scaler", "accepted"
            )
            others.publish_now("loadline.v1.applied.llama", encode(answer))

    async def accept(payload: bytes) -> bytes:
        drained.append(msgspec.json.decode(payload, type=DrainCommand))
        return encode(DrainReply(drained[-1].drain_id, accepted=True))

    bus.subscribe(others, "loadline.v1.decision.>", receive)
    SimulatedAgent(timeline, settings(), bus.connection(), store.connection(), turn_spacing_ms=0.0)
    for given in simulator.inputs:
        if given.now_ms > START_MS:  # events at the start time are known in the first turn
            timeline.run_until(given.now_ms - START_MS)
        for item in given.frames:
            if isinstance(item.subject, str) and isinstance(item.payload, Raw):
                others.publish_now(item.subject, bytes(item.payload))
                continue
            value = bytes(item.record) if isinstance(item.record, Raw) else None
            name = msgspec.json.decode(value)["worker"] if value else str(item.gone)
            bus.answer(others, f"loadline.v1.drain.{name}", accept)
            store.commit([], [Write(keys.worker("llama", "engine", name), value)])
    timeline.run_until(timeline.now_ms + 500.0)
    assert list(decided.values()) == [decision for answer in simulator.outputs for decision in answer.decisions]
    assert drained == [drain for answer in simulator.outputs for drain in answer.drains]


def test_steps_without_input_have_no_effect() -> None:
    simulator, stepper = run_simulator(), Stepper(settings())
    fine: list[StepOutput] = []
    for given in simulator.inputs:
        fine += [
            stepper.step(StepInput(now_ms)) for now_ms in range(given.now_ms - 900, given.now_ms, 300) if now_ms > 0
        ]
        fine.append(stepper.step(given))
    assert [d for a in fine for d in a.decisions] == [d for a in simulator.outputs for d in a.decisions]
    assert [d for a in fine for d in a.drains] == [d for a in simulator.outputs for d in a.drains]


def test_turns_that_are_due_between_two_steps_run_at_their_time(stepper: Stepper) -> None:
    assert stepper.step(StepInput(0)).decisions == []
    (decision,) = stepper.step(StepInput(60_000)).decisions
    assert decision.issued_at_ms == 5_000
    assert stepper.controller.leading
    assert stepper.controller.state.counters["leaderships_won"] == 1


def test_the_agent_leads_in_its_first_step_and_returns_its_next_wake(stepper: Stepper) -> None:
    answer = stepper.step(StepInput(7, [record("w")]))
    assert stepper.controller.leading
    assert answer.next_wake_ms is not None
    assert answer.next_wake_ms > 7
    assert answer.holds[0].at_ms == 7
    assert ReasonCode.NOT_SETTLED in reasons(answer)


def test_a_decision_is_output_once_and_expires_without_an_answer(stepper: Stepper) -> None:
    answers = [stepper.step(StepInput(second * 1_000)) for second in range(1_000)]
    ids = [decision.decision_id for answer in answers for decision in answer.decisions]
    assert len(ids) == len(set(ids)) == 2, "the first decision, and another one after it has expired"
    assert [alarm.kind for answer in answers for alarm in answer.alarms][:1] == ["decision_expired"]


def test_a_hold_is_output_only_after_an_evaluation_of_its_model(stepper: Stepper) -> None:
    stepper.step(StepInput(0, [record("w")]))
    (hold,) = stepper.step(StepInput(6_000, [load("w", 1)])).holds
    assert (hold.model, hold.at_ms, hold.targets) == ("llama", 6_000, {"engine": 1})
    assert [(reason.code, reason.pool) for reason in hold.reasons] == [(ReasonCode.SATURATION_WITHIN, "engine")]
    assert hold.reasons[0].sentence == "engine: load needs 0.87 of 1 worker, within the thresholds"
    assert stepper.step(StepInput(6_000)).holds == []


def test_advice_is_a_hold_with_the_advised_counts() -> None:
    pool = PoolKnobs("engine", "aggregated", replicas_min=2)
    stepper = Stepper(Settings("a", "all", (ModelKnobs("llama", (pool,), no_operation=True),)))
    stepper.step(StepInput(0, [record("w")]))
    answer = stepper.step(StepInput(6_000, [load("w", 1)]))
    assert answer.decisions == []
    assert answer.holds[0].targets == {"engine": 2}
    assert reasons(answer)[0] == ReasonCode.ADVISE_ONLY


def test_migrations_are_output_and_followed_by_reports_of_their_source() -> None:
    stepper = moving()
    answer = unbalanced(stepper)
    (command,) = answer.migrations
    assert (command.source.worker, command.destination.worker, command.trigger) == ("full", "empty", "neutral_load")
    (flight,) = stepper.controller.state.migration.in_flight.open.values()
    assert (flight.phase, flight.tokens, flight.requests) == ("accepted", 400, 4)
    reports = [report_migration(command, "admitted"), report_migration(command, "copying")]
    answer = stepper.step(StepInput(1_500, [*reports, report_migration(command, "switched", moved=1)]))
    assert (answer.migrations, answer.rejected, answer.alarms) == ([], [], [])
    assert flight.phase == "switched"
    after = [fill("full", 1, 800, 8), fill("empty", 1, 200, 2)]
    answers = [stepper.step(StepInput(2_000, [report_migration(command, "done", moved=1, tokens=100), *after]))]
    answers += [stepper.step(StepInput(2_500, [fill("full", 2, 800, 8), fill("empty", 2, 200, 2)]))]
    tally = stepper.controller.state.fleet.models["llama"].migration.tally
    assert (tally.requests, tally.tokens) == ({"neutral_load": 1}, {"neutral_load": 100})
    assert [one.source.worker for answer in answers for one in answer.migrations] == ["full"], (
        "the source is still overloaded"
    )


def test_a_migration_without_reports_is_lost_with_an_alarm() -> None:
    stepper = moving()
    unbalanced(stepper)
    step_outputs = [
        stepper.step(StepInput(ms, [fill("full", ms, 900, 9), fill("empty", ms, 100, 1)]))
        for ms in range(2_000, 40_000, 1_000)
    ]
    assert "migration_lost" in [alarm.kind for answer in step_outputs for alarm in answer.alarms]


def test_every_line_matches_its_schema() -> None:
    simulator = run_simulator()
    for name, lines in (("step_input", simulator.inputs), ("step_output", [*simulator.outputs, unbalanced(moving())])):
        check = Draft202012Validator(json.loads((SCHEMAS / f"{name}.v1.json").read_text("utf-8")))
        for line in lines:
            check.validate(json.loads(encode_step(line)))
        with pytest.raises(ValidationError):
            check.validate({"now_ms": 0, "frames": [{"subject": "x"}], "decisions": [{}]})


def test_frames_of_another_root_are_ignored() -> None:
    stepper = Stepper(settings(), root="test")
    answer = stepper.step(StepInput(0, [record("w"), load("w", 1)]))
    assert [refused.reason for refused in answer.rejected] == [Rejection.SUBJECT_UNKNOWN]


@pytest.mark.parametrize(
    ("item", "reason", "subject"),
    [
        (StepItem(subject="x", payload=Raw(b"{}")), Rejection.SUBJECT_UNKNOWN, "x"),
        (StepItem(subject="loadline.v1.decision.llama", payload=Raw(b"{}")), Rejection.SUBJECT_UNKNOWN, None),
        (load("w", 1, kv_usage_ratio=3), Rejection.INVALID, "loadline.v1.load.llama.engine.w"),
        (StepItem(record=Raw(b'{"model":"llama"}')), Rejection.INVALID, "frames[0]"),
        (StepItem(gone="nobody"), Rejection.UNKNOWN_WORKER, "nobody"),
        (load("nobody", 1), Rejection.UNKNOWN_WORKER, ""),
        (load("w", 1, incarnation=2), Rejection.UNKNOWN_INCARNATION, ""),
        (load("w", 0, rank=1), Rejection.RANK_OUT_OF_RANGE, ""),
        (load("w", 0), Rejection.NOT_NEWER, ""),
        (record("v", role="decode"), Rejection.ROLE_MISMATCH, ""),
        (frame("traffic.gpt.f", {"model": "gpt"}), Rejection.INVALID, None),
        (StepItem(subject="loadline.v1.load.llama.engine.w", payload=Raw(b"[]")), Rejection.INVALID, None),
        (StepItem(subject="loadline.v1.load.llama.engine.w", payload=Raw(b" " * 262_145)), Rejection.OVERSIZED, None),
    ],
)
def test_rejections_are_output(stepper: Stepper, item: StepItem, reason: Rejection, subject: str | None) -> None:
    stepper.step(StepInput(0, [record("w"), load("w", 0)]))
    (refused,) = stepper.step(StepInput(1_000, [item])).rejected
    assert refused.reason == reason
    assert refused.detail
    assert subject is None or refused.subject == subject
    assert stepper.step(StepInput(2_000)).rejected == [], "the rejection is output once"


def test_a_refused_record_raises_an_alarm_that_names_it(stepper: Stepper) -> None:
    (alarm,) = stepper.step(StepInput(0, [record("v", role="decode")])).alarms
    assert (alarm.kind, alarm.model) == ("worker_refused", "llama")
    assert "v of pool engine" in alarm.text


def test_a_worker_may_register_again_as_another_one(stepper: Stepper) -> None:
    stepper.step(StepInput(0, [record("w"), load("w", 1)]))
    answer = stepper.step(
        StepInput(1_000, [StepItem(gone="w"), record("w", incarnation=2), load("w", 1, incarnation=2)])
    )
    assert answer.rejected == []
    (worker,) = stepper.controller.state.fleet.models["llama"].pools["engine"].workers.values()
    assert worker.record.incarnation == 2


def test_a_worker_leaves_once_and_its_name_can_be_reused(stepper: Stepper) -> None:
    gone = StepItem(gone="w")
    (refused,) = stepper.step(StepInput(0, [record("w"), gone, gone])).rejected
    assert (refused.reason, refused.subject) == (Rejection.UNKNOWN_WORKER, "w")
    (refused,) = stepper.step(StepInput(1, [record("w", pool="other")])).rejected
    assert refused.reason == Rejection.UNKNOWN_POOL, "a worker of the fleet: its name can be reused"


def test_leases_expire_in_virtual_time(stepper: Stepper) -> None:
    stepper.step(StepInput(0))
    stepper.step(StepInput(60_000))
    assert stepper._timeline.now_ms == 60_000
    assert [entry.lease_id for entry in stepper._store.keys.values() if "/leader/" in entry.key], (
        "renewals keep the lease"
    )


@pytest.mark.parametrize(
    "item",
    [
        StepItem(),
        StepItem(subject="x"),
        StepItem(payload=Raw(b"{}")),
        StepItem(record=Raw(b"{}"), gone="w"),
        StepItem(subject="x", payload=Raw(b"{}"), gone="w"),
    ],
)
def test_an_input_item_has_exactly_one_of_three_kinds(stepper: Stepper, item: StepItem) -> None:
    with pytest.raises(DataError, match=r"frames\[1\] is neither .* Write "):
        stepper.step(StepInput(0, [record("w"), item]))


def test_names_of_workers_are_unique(stepper: Stepper) -> None:
    with pytest.raises(DataError, match=r"frames\[1\] registers 'w', which is there in pool 'engine' .* Give every"):
        stepper.step(StepInput(0, [record("w"), record("w", pool="other")]))


@pytest.mark.parametrize("now_ms", [999, 1_001 + JUMP_MAX_MS])
def test_a_step_advances_by_at_most_a_day(stepper: Stepper, now_ms: int) -> None:
    stepper.step(StepInput(1_000))
    with pytest.raises(DataError, match=r"now_ms .* from 1000 to"):
        stepper.step(StepInput(now_ms))


def test_a_step_of_an_hour_ends_no_term(stepper: Stepper) -> None:
    stepper.step(StepInput(0, [record("w")]))
    answer = stepper.step(StepInput(3_600_000))
    assert answer.next_wake_ms is not None
    assert answer.next_wake_ms > 3_600_000
    assert stepper.controller.state.counters["leaderships_won"] == 1


def test_all_frames_that_fit_into_a_line_are_read(stepper: Stepper) -> None:
    frames = [load("w", sequence) for sequence in range(2_000)]
    answer = stepper.step(StepInput(0, [record("w"), *frames]))
    assert answer.rejected == []
    (worker,) = stepper.controller.state.fleet.models["llama"].pools["engine"].workers.values()
    assert [sample.sequence for sample in worker.latest if sample is not None] == [1_999]


def test_all_subjects_of_an_agent_are_read() -> None:
    simulator = run_simulator()
    subjects = [item.subject for given in simulator.inputs for item in given.frames]
    kinds = {subject.split(".")[2] for subject in subjects if isinstance(subject, str)}
    stepper = moving()
    (command,) = unbalanced(stepper).migrations
    assert stepper.step(StepInput(1_000, [report_migration(command, "done", moved=1)])).rejected == []
    assert stepper.controller.state.fleet.models["llama"].migration.tally.requests == {"neutral_load": 1}
    assert kinds == set(FRAME_KINDS) - {"traffic", "migration"}
    stepper = Stepper(settings())
    sample = {"sequence": 1, "interval_ms": 1_000, "arrivals": 3}
    message = {"model": "llama", "frontend": "f", "incarnation": 1, "sample": sample}
    assert stepper.step(StepInput(0, [frame("traffic.llama.f", message)])).rejected == []
