"""What a person sees of a demo: the table has what was last decided, how far it got, and why."""

import io

import pytest
from msgspec.structs import replace

from loadline.core.vocabulary.migrations import MigrationEndpoint, MigrationFailure, MigrationReportPhase
from loadline.core.vocabulary.status import (
    AgentStatus,
    DecisionSummary,
    InFlightStatus,
    MigrationStatus,
    ModelStatus,
    PoolStatus,
    TrafficStatus,
)
from loadline.demo.display import MIGRATIONS_SHOWN, LiveDisplay, PlainDisplay, decision_line
from loadline.demo.migration_log import LINES_MAX
from loadline.demo.runner import StatusMonitor
from loadline.wire.codec import encode
from loadline.wire.messages import MigrationReport

DECISION = DecisionSummary("id", "m", 1, 7, 0, "applied", {"prefill": 1, "decode": 5}, ("decode:kv_usage_high",))


def status(decision: DecisionSummary | None) -> AgentStatus:
    pools = (
        PoolStatus("prefill", "prefill", 1, 1, 0, 0, 0, 1, 0.04, 0, 4, ()),
        PoolStatus("decode", "decode", 5, 3, 1, 1, 2, 3, 0.98, 17, 158, ()),
    )
    traffic = TrafficStatus(298.0, None, None, 252.0, 35.5, 0)
    model = ModelStatus(
        "m", "threshold", paused=False, no_operation=False, pools=pools, traffic=traffic, decision=decision, hold=("x",)
    )
    return AgentStatus(
        "a",
        "0",
        at_ms=10_000,
        uptime_ms=0,
        leading=True,
        epoch=1,
        leader="a",
        bus_connected=True,
        store_connected=True,
        models=(model,),
        rejected={},
        counters={},
    )


def test_the_last_decision_is_told_with_its_state_and_reasons() -> None:
    told = decision_line(status(DECISION).models[0])
    assert told == "decision #7 applied: prefill 1, decode 5 (decode:kv_usage_high)"
    assert decision_line(status(None).models[0]) == "no decision yet"


def test_the_live_table_shows_it_below_the_workers_by_state() -> None:
    rich_console = pytest.importorskip("rich.console")
    view = LiveDisplay("the demo")
    view.status(status(DECISION))
    out = io.StringIO()
    rich_console.Console(file=out, width=120).print(view._draw())
    lines = out.getvalue().splitlines()
    [decode] = [line for line in lines if line.startswith("│ decode")]
    assert [cell.strip() for cell in decode.strip("│").split("│")] == [
        *("decode", "5", "### 3", "1", "1", "2", "98%", "17", "158")
    ]
    assert "decision #7 applied: prefill 1, decode 5 (decode:kv_usage_high)" in lines
    assert "298 requests/s, TTFT 252 ms, ITL 35.5 ms" in lines


def test_plain_lines_have_each_pool() -> None:
    lines: list[str] = []
    with PlainDisplay("the demo", lines.append) as view:
        view.status(status(DECISION))
    assert lines[1] == (
        "m: prefill 1 of 1 (KV 4%, 0 waiting, 4 running); decode 3 +2 -2 of 5 (KV 98%, 17 waiting, 158 running)"
    )


def moving() -> AgentStatus:
    """Six moves in flight."""
    move = InFlightStatus("c", "decode-7", "decode-2", "decode_load", "copying", 400, 3, 1)
    migrations = MigrationStatus(6, (move,) * 6, {}, {"decode_load": 40, "drain": 5}, {}, {}, 2, ("a", "b"))
    whole = status(None)
    return replace(whole, models=(replace(whole.models[0], migrations=migrations),))


def test_the_live_view_has_moves_in_flight_and_totals() -> None:
    rich_console = pytest.importorskip("rich.console")
    view = LiveDisplay("the demo")
    view.status(moving())
    out = io.StringIO()
    rich_console.Console(file=out, width=120).print(view._draw())
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert "migrations: 6 in flight, 45 requests migrated, 2 workers do not answer" in lines
    assert lines.count("  decode-7 -> decode-2 (decode_load) copying, 1 of 3 requests") == MIGRATIONS_SHOWN


def test_plain_lines_have_the_moves_of_a_model_where_there_may_be_any() -> None:
    lines: list[str] = []
    with PlainDisplay("the demo", lines.append) as view:
        view.status(moving())
    assert lines[1].endswith("running); migrations: 6 in flight, 45 requests migrated, 2 workers do not answer")


class Told:
    """What a demo tells: a view of lines, and the word of workers on their moves."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.watch = StatusMonitor(PlainDisplay("", self.lines.append))
        self.reports = 0
        self.news()

    def report(
        self, phase: MigrationReportPhase, moved: int = 0, failed: int = 0, reason: MigrationFailure = "", to: int = 2
    ) -> bytes:
        self.reports += 1
        ends = MigrationEndpoint("decode", "decode-7", 1), MigrationEndpoint("decode", f"decode-{to}", 1)
        said = MigrationReport(
            f"c{self.reports}", "m", 1, *ends, "decode_load", phase, moved + failed, moved, failed, reason=reason
        )
        return encode(said)

    def hear(self, payload: bytes) -> None:
        self.watch.on_migration_report("", payload)

    def news(self) -> list[str]:
        """Lines that a status brings, without those about the agent."""
        self.lines.clear()
        self.watch.on_status("", encode(status(None)))
        return [line for line in self.lines if "migrated" in line]


def test_what_was_moved_is_told_once_with_the_next_status() -> None:
    told = Told()
    done = told.report("done", moved=3)
    for _ in range(3):
        told.hear(done)
    told.hear(told.report("copying"))
    told.hear(told.report("done", moved=2, failed=1, reason="finished"))
    assert told.news() == ["5 requests migrated decode-7 -> decode-2 (decode_load)"]
    told.hear(done)
    assert told.news() == []


def test_what_did_not_move_is_told_with_its_reason_unless_it_had_ended() -> None:
    told = Told()
    told.hear(told.report("aborted", failed=2, reason="destination_refused"))
    told.hear(told.report("aborted", failed=2, reason="finished"))
    told.hear(b"nonsense")
    assert told.news() == ["2 requests not migrated decode-7 -> decode-2 (decode_load): destination_refused"]


def test_one_request_is_one() -> None:
    told = Told()
    told.hear(told.report("done", moved=1))
    told.hear(told.report("aborted", failed=1, reason="failed"))
    assert told.news() == [
        "1 request migrated decode-7 -> decode-2 (decode_load)",
        "1 request not migrated decode-7 -> decode-2 (decode_load): failed",
    ]


def test_many_moves_are_a_few_lines() -> None:
    told = Told()
    for number in range(2_000):
        told.hear(told.report("done", moved=1, to=number))
    *lines, rest = told.news()
    assert len(lines) == LINES_MAX
    assert rest == f"{2_000 - LINES_MAX} more requests migrated"
