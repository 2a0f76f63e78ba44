"""Displays of the demo: workers, the last decision with its state and reasons, and migrations."""

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


def test_the_decision_line_has_state_and_reasons() -> None:
    line = decision_line(status(DECISION).models[0])
    assert line == "decision #7 applied: prefill 1, decode 5 (decode:kv_usage_high)"
    assert decision_line(status(None).models[0]) == "no decision yet"


def test_the_live_table_shows_workers_by_state_and_below_it_the_decision() -> None:
    rich_console = pytest.importorskip("rich.console")
    view = LiveDisplay("the demo")
    view.status(status(DECISION))
    out = io.StringIO()
    rich_console.Console(file=out, width=80).print(view._draw())
    lines = out.getvalue().splitlines()
    assert "…" not in out.getvalue()
    [decode] = [line for line in lines if line.startswith("│ decode")]
    assert [cell.strip() for cell in decode.strip("│").split("│")] == [
        *("decode", "5", "### 3", "2", "2", "98%", "17", "158")
    ]
    assert "decision #7 applied: prefill 1, decode 5 (decode:kv_usage_high)" in lines
    assert "298 requests/s, TTFT 252 ms, ITL 35.5 ms" in lines


def test_the_live_table_fits_80_columns_with_many_workers() -> None:
    rich_console = pytest.importorskip("rich.console")
    base = status(DECISION)
    pools = tuple(
        replace(one, ready=480, desired=500, draining=120, waiting_requests=12_345) for one in base.models[0].pools
    )
    view = LiveDisplay("the demo")
    view.status(replace(base, models=(replace(base.models[0], pools=pools),)))
    out = io.StringIO()
    rich_console.Console(file=out, width=80).print(view._draw())
    assert "…" not in out.getvalue()
    assert "################ 480" in out.getvalue()


def test_plain_lines_have_each_pool() -> None:
    lines: list[str] = []
    with PlainDisplay("the demo", lines.append) as view:
        view.status(status(DECISION))
    assert lines[1] == (
        "m: prefill 1 of 1 (KV 4%, 0 waiting, 4 running); decode 3 +2 -2 of 5 (KV 98%, 17 waiting, 158 running)"
    )


def status_with_migrations() -> AgentStatus:
    """A status with six migrations in flight."""
    migration = InFlightStatus("c", "decode-7", "decode-2", "decode_load", "copying", 400, 3, 1)
    migrations = MigrationStatus(6, (migration,) * 6, {}, {"decode_load": 40, "drain": 5}, {}, {}, 2, ("a", "b"))
    base = status(None)
    return replace(base, models=(replace(base.models[0], migrations=migrations),))


def test_the_live_display_has_migrations_in_flight_and_totals() -> None:
    rich_console = pytest.importorskip("rich.console")
    view = LiveDisplay("the demo")
    view.status(status_with_migrations())
    out = io.StringIO()
    rich_console.Console(file=out, width=120).print(view._draw())
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert "migrations: 6 in flight, 45 requests migrated, 2 workers do not answer" in lines
    assert lines.count("  decode-7 -> decode-2 (decode_load) copying, 1 of 3 requests") == MIGRATIONS_SHOWN


def test_plain_lines_have_the_migrations_of_models_that_migrate() -> None:
    lines: list[str] = []
    with PlainDisplay("the demo", lines.append) as view:
        view.status(status_with_migrations())
    assert lines[1].endswith("running); migrations: 6 in flight, 45 requests migrated, 2 workers do not answer")


class MigrationDisplay:
    """Plain display that receives the migration reports of workers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.monitor = StatusMonitor(PlainDisplay("", self.lines.append))
        self.reports = 0
        self.printed_migrations()

    def report(
        self, phase: MigrationReportPhase, moved: int = 0, failed: int = 0, reason: MigrationFailure = "", to: int = 2
    ) -> bytes:
        self.reports += 1
        endpoints = MigrationEndpoint("decode", "decode-7", 1), MigrationEndpoint("decode", f"decode-{to}", 1)
        report = MigrationReport(
            f"c{self.reports}", "m", 1, *endpoints, "decode_load", phase, moved + failed, moved, failed, reason=reason
        )
        return encode(report)

    def receive(self, payload: bytes) -> None:
        self.monitor.on_migration_report("", payload)

    def printed_migrations(self) -> list[str]:
        """Receive a status; return the lines about migrations that are printed with it."""
        self.lines.clear()
        self.monitor.on_status("", encode(status(None)))
        return [line for line in self.lines if "migrated" in line]


def test_migrated_requests_are_printed_once_with_the_next_status() -> None:
    display = MigrationDisplay()
    done = display.report("done", moved=3)
    for _ in range(3):
        display.receive(done)
    display.receive(display.report("copying"))
    display.receive(display.report("done", moved=2, failed=1, reason="finished"))
    assert display.printed_migrations() == ["5 requests migrated decode-7 -> decode-2 (decode_load)"]
    display.receive(done)
    assert display.printed_migrations() == []


def test_failed_migrations_are_printed_with_the_reason_unless_the_requests_had_finished() -> None:
    display = MigrationDisplay()
    display.receive(display.report("aborted", failed=2, reason="destination_refused"))
    display.receive(display.report("aborted", failed=2, reason="finished"))
    display.receive(b"nonsense")
    assert display.printed_migrations() == [
        "2 requests not migrated decode-7 -> decode-2 (decode_load): destination_refused"
    ]


def test_one_request_is_printed_in_the_singular() -> None:
    display = MigrationDisplay()
    display.receive(display.report("done", moved=1))
    display.receive(display.report("aborted", failed=1, reason="failed"))
    assert display.printed_migrations() == [
        "1 request migrated decode-7 -> decode-2 (decode_load)",
        "1 request not migrated decode-7 -> decode-2 (decode_load): failed",
    ]


def test_many_migrations_are_summed_up_in_a_few_lines() -> None:
    display = MigrationDisplay()
    for number in range(2_000):
        display.receive(display.report("done", moved=1, to=number))
    *lines, rest = display.printed_migrations()
    assert len(lines) == LINES_MAX
    assert rest == f"{2_000 - LINES_MAX} more requests migrated"
