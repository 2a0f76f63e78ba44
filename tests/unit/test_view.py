"""What a person sees of a demo: the table has what was last decided, how far it got, and why."""

import io

import pytest

from loadline.core.status import AgentStatus, DecisionSummary, ModelStatus, PoolStatus, TrafficStatus
from loadline.demo.view import LiveView, PlainView, last_decision

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
    told = last_decision(status(DECISION).models[0])
    assert told == "decision #7 applied: prefill 1, decode 5 (decode:kv_usage_high)"
    assert last_decision(status(None).models[0]) == "no decision yet"


def test_the_live_table_shows_it_below_the_workers_by_state() -> None:
    rich_console = pytest.importorskip("rich.console")
    view = LiveView("the demo")
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
    with PlainView("the demo", lines.append) as view:
        view.status(status(DECISION))
    assert lines[1] == (
        "m: prefill 1 of 1 (KV 4%, 0 waiting, 4 running); decode 3 +2 -2 of 5 (KV 98%, 17 waiting, 158 running)"
    )
