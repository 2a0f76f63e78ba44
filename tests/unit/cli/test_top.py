"""The live view: rows, keys, narrow terminals, and an agent that does not answer."""

import asyncio
import time
from collections.abc import Callable

from msgspec.structs import replace
from textual.pilot import Pilot
from textual.widgets import Input

from loadline.cli.top_app import TopApp
from loadline.cli.top_rows import COLUMNS, alarm_changes, decision_changes, fleet_rows
from loadline.core.vocabulary.scalars import Role
from loadline.core.vocabulary.status import (
    AgentStatus,
    DecisionSummary,
    InFlightStatus,
    MigrationStatus,
    ModelStatus,
    PoolStatus,
    RaisedAlarm,
    TrafficStatus,
)
from loadline.errors import LoadlineError
from tests.waiting import DEADLINE_S

TRAFFIC = TrafficStatus(12.5, 900.0, 200.0, 412.0, 21.0, 3, 40, 2, ttft_attainment=0.91)
NO_TRAFFIC = TrafficStatus(None, None, None, None, None, 0)
MOVES = MigrationStatus(
    1, (InFlightStatus("c", "d1", "d2", "decode_load", "copying", 1_500, 4, 1),), {}, {"decode_load": 7}, {}, {}, 0, ()
)


def pool(name: str, desired: int, ready: int, **more: int) -> PoolStatus:
    role: Role = "prefill" if name == "prefill" else "decode"
    return PoolStatus(name, role, desired, ready, more.get("starting", 0), 0, 0, ready, 0.62, 1, 9, ())


def model(name: str, traffic: TrafficStatus = NO_TRAFFIC) -> ModelStatus:
    decision = DecisionSummary("id-1", name, 3, 7, 0, "accepted", {"decode": 3}, ("kv_usage_high",))
    pools = (pool("prefill", 1, 1), pool("decode", 3, 2, starting=1))
    goals = {"ttft_ms": 400.0, "itl_ms": 25.0}
    hold = ("decode: the last change was 12 s ago: it waits 60 s",)
    return ModelStatus(
        model=name,
        planner="auto",
        paused=False,
        no_operation=False,
        pools=pools,
        traffic=traffic,
        decision=decision,
        hold=hold,
        objectives=goals,
        migrations=MOVES,
    )


def agent(*models: ModelStatus) -> AgentStatus:
    return AgentStatus(
        agent="a1",
        version="0.1.0",
        at_ms=45_296_000,
        uptime_ms=90_000,
        leading=True,
        epoch=3,
        leader="a1",
        bus_connected=True,
        store_connected=True,
        models=models,
        rejected={},
        counters={},
    )


class FakeFleet:
    def __init__(self, *models: ModelStatus) -> None:
        self.found = agent(*models)
        self.orders: list[tuple[str, str]] = []
        self.problem = ""

    async def status(self) -> AgentStatus:
        if self.problem:
            raise LoadlineError(self.problem)
        return self.found

    async def explain(self, model: str) -> str:
        return f"{model}: held, since [decode] waits"

    async def order(self, method: str, model: str) -> None:
        if self.problem:
            raise LoadlineError(self.problem)
        self.orders.append((method, model))


def text(app: TopApp) -> str:
    return "\n".join("".join(part.text for part in strip).rstrip() for strip in app.screen._compositor.render_strips())


async def shown(pilot: Pilot[None], app: TopApp, found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not found():
        assert time.monotonic() < deadline, text(app)
        await pilot.pause()


def drive(fleet: FakeFleet, act: Callable[[Pilot[None], TopApp], object], columns: int = 80) -> None:
    async def run() -> None:
        app = TopApp(fleet, interval_s=0.05)
        async with app.run_test(size=(columns, 30)) as pilot:
            await act(pilot, app)  # type: ignore[misc]

    asyncio.run(run())


def test_the_fleet_fits_80_columns() -> None:
    async def act(pilot: Pilot[None], app: TopApp) -> None:
        await shown(pilot, app, lambda: "d1 -> d2" in text(app) and "Explain" in text(app))
        lines = text(app).splitlines()
        assert lines[0].strip() == "agent a1 0.1.0, leading, epoch 3, up 90 s, 2 models"
        table = [line.split() for line in lines[1:8]]
        assert table[0] == ["model,", "pool", *" ".join(title for title, _ in COLUMNS[1:]).split()]
        assert table[1] == ["chat", "4", "3", "1", "0", "62%", "2", "18", "412/400", "21/25"]
        assert table[3] == ["decode", "3", "2", "1", "0", "62%", "1", "9"]
        assert table[4] == ["code", "4", "3", "1", "0", "62%", "2", "18", "-/400", "-/25"]
        shown_text = " ".join(text(app).split())
        for part in (
            "traffic: 12.5 requests/s",
            "attainment: 91.0% of requests within TTFT",
            "d1 -> d2 (decode_load) copying: 1 of 4 requests, 1.5 s",
            "hold: decode: the last change was 12 s ago",
            "12:34:56 chat #7 accepted: decode 3 (kv_usage_high)",
            "Pause/resume",
        ):
            assert part in shown_text

    drive(FakeFleet(model("chat", TRAFFIC), model("code")), act)


def test_a_latency_above_its_objective_is_marked() -> None:
    late, fine = fleet_rows(agent(model("chat", TRAFFIC)), "")[0], fleet_rows(agent(model("code")), "")[0]
    assert late.is_late
    assert not fine.is_late


def test_names_are_cut_and_escaped() -> None:
    rows = fleet_rows(agent(replace(model("m\x1b[31m" + "x" * 40), paused=True)), "")
    assert rows[0].cells[0] == "m\\u001b[3… (paused)"
    assert all(len(row.cells[0]) <= COLUMNS[0][1] for row in rows)


def test_a_narrow_terminal_gets_a_message() -> None:
    async def act(pilot: Pilot[None], app: TopApp) -> None:
        await shown(pilot, app, lambda: "loadline top needs" in text(app))
        assert "this terminal has 40" in " ".join(text(app).split())
        assert "want" not in text(app)
        await pilot.resize_terminal(80, 30)
        await shown(pilot, app, lambda: "want" in text(app) and "loadline top needs" not in text(app))

    drive(FakeFleet(model("chat")), act, columns=40)


def test_pause_and_resume_need_a_confirmation() -> None:
    fleet = FakeFleet(model("chat"), model("code"))

    async def act(pilot: Pilot[None], app: TopApp) -> None:
        await shown(pilot, app, lambda: "code" in text(app))
        await pilot.press("p")
        await shown(pilot, app, lambda: "Pause scaling decisions and migrations of chat?" in text(app))
        await pilot.press("enter")
        await shown(pilot, app, lambda: "migrations of chat?" not in text(app))
        assert fleet.orders == []
        await pilot.press("down", "down", "down", "p")
        await shown(pilot, app, lambda: "migrations of code?" in text(app))
        await pilot.press("y")
        await shown(pilot, app, lambda: fleet.orders == [("pause", "code")])
        fleet.found = agent(model("chat"), replace(model("code"), paused=True))
        await shown(pilot, app, lambda: "code (paused)" in text(app))
        await pilot.press("p")
        await shown(pilot, app, lambda: "Resume scaling decisions" in text(app))
        await pilot.press("y")
        await shown(pilot, app, lambda: fleet.orders[1:] == [("resume", "code")])

    drive(fleet, act)


def test_enter_explains_the_selected_model() -> None:
    async def act(pilot: Pilot[None], app: TopApp) -> None:
        await shown(pilot, app, lambda: "chat" in text(app))
        await pilot.press("enter")
        await shown(pilot, app, lambda: "chat: held, since [decode] waits" in text(app))
        await pilot.press("escape")
        await shown(pilot, app, lambda: "held, since" not in text(app))

    drive(FakeFleet(model("chat")), act)


def test_a_filter_keeps_the_models_with_the_name() -> None:
    async def act(pilot: Pilot[None], app: TopApp) -> None:
        await shown(pilot, app, lambda: "2 models" in text(app))
        await pilot.press("slash", *"COD", "enter")
        await shown(pilot, app, lambda: "1 of 2 models" in text(app))
        assert not app.query_one(Input).display
        await pilot.press("escape")
        await shown(pilot, app, lambda: " of 2 models" not in text(app))

    drive(FakeFleet(model("chat"), model("code")), act)


def test_the_view_goes_on_when_an_agent_answers_again() -> None:
    fleet = FakeFleet(model("chat"))
    fleet.problem = "no agent answers. Start one."

    async def act(pilot: Pilot[None], app: TopApp) -> None:
        await shown(pilot, app, lambda: "no answer: no agent answers. Start one." in text(app))
        fleet.problem = ""
        await shown(pilot, app, lambda: "agent a1" in text(app))

    drive(fleet, act)


def test_a_decision_is_listed_once_for_each_state() -> None:
    before, after = agent(model("chat")), agent(model("chat"))
    assert len(decision_changes(None, before)) == 1
    assert decision_changes(before, after) == []
    decision = after.models[0].decision
    assert decision is not None
    done = agent(replace(after.models[0], decision=replace(decision, state="done")))
    assert decision_changes(after, done) == ["12:34:56 chat #7 done: decode 3 (kv_usage_high)"]


def test_an_alarm_is_listed_once_for_each_time_that_it_is_raised() -> None:
    first = RaisedAlarm("drain_overdue", "chat", "d\x1b1 is late", 45_296_000, 1)
    again = replace(first, at_ms=45_297_000, count=2)
    before, after = (replace(agent(model("chat")), alarms=(one,)) for one in (first, again))
    assert alarm_changes(None, before) == ["12:34:56 ALARM drain_overdue chat: d\\u001b1 is late"]
    assert alarm_changes(before, before) == []
    assert alarm_changes(before, after) == ["12:34:57 ALARM drain_overdue chat: d\\u001b1 is late"]


def test_the_load_of_silent_pools_is_unknown() -> None:
    silent = replace(model("m"), pools=tuple(replace(one, fresh=0) for one in model("m").pools))
    mixed = replace(silent, pools=(silent.pools[0], replace(silent.pools[1], fresh=1)))
    found = fleet_rows(agent(silent, mixed), "")
    titles = [title for title, _ in COLUMNS]
    shown = [(row.cells[titles.index("wait")], row.cells[titles.index("run")]) for row in found]
    assert shown == [("-", "-"), ("-", "-"), ("-", "-"), ("2", "18"), ("-", "-"), ("1", "9")]
