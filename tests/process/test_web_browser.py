"""The live page in headless Chromium: what it draws, by keyboard, for screen readers, and with 1,000 workers."""

import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from loadline.adapters.http import HttpServer
from loadline.adapters.parent_death import ending_with_parent
from loadline.core.vocabulary.status import (
    AgentStatus,
    InFlightStatus,
    MigrationStatus,
    RaisedAlarm,
    RecentMigration,
    SharingStatus,
)
from loadline.web.access import Access
from loadline.web.event_streams import EventStreams
from loadline.web.live_handlers import LiveHandlers
from loadline.web.live_page import LivePage
from loadline.wire.messages import OperatorReply
from tests.support.browser import CHROMIUM, Tab, browser
from tests.support.statuses import START_MS, agent, model, pool, state_of, worker
from tests.waiting import SCENARIO_S

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian: apt-get install chromium)"),
]
GOLDEN: Final = Path(__file__).parents[1] / "golden" / "journal"
AXE: Final = Path(sys.prefix) / "axe" / "package" / "axe.min.js"
TOKEN: Final = "0123456789-abcdef"  # noqa: S105 - of no agent
SHOTS: Final = os.environ.get("LOADLINE_TEST_SCREENSHOTS", "")
"""Folder for screenshots; empty: the test's own."""


Change = Callable[[AgentStatus], AgentStatus]


class Site:
    """A page of made-up statuses."""

    def __init__(self, token_file: str = "", port: int = 0) -> None:
        self.models = 2
        self.page = LivePage(lambda: self.models, lambda: [state_of(self.page.status)], EventStreams())
        self.paused: list[str] = []
        routes = LiveHandlers(self.page, Access("127.0.0.1", token_file), self.set_paused).routes()
        self._server = HttpServer("127.0.0.1", port, metrics=_no_metrics, healthy=list, ready=list, routes=routes)

    async def start(self) -> str:
        await self._server.start()
        self.port = self._server.port
        return f"http://127.0.0.1:{self.port}/"

    async def stop(self) -> None:
        self.page.streams.close()
        await self._server.close()

    async def tell(self, *seconds: int, change: Change = lambda status: status) -> None:
        for second in seconds:
            at_ms = START_MS + 5_000 * second
            busy = [pool(12, kv=0.35 + second % 9 / 15), replace(pool(3, desired=4, kv=0.97), pool="prefill")]
            llama = replace(model(), pools=tuple(busy))
            await self.page.update(change(agent(llama, model("qwen"), at_ms=at_ms)))

    async def set_paused(self, model: str, by: str, *, paused: bool) -> OperatorReply:
        self.paused.append(f"{model} {by} {paused}")
        return OperatorReply(accepted=True)


async def _no_metrics() -> bytes:
    return b""


def run(scenario: Callable[[Site, Tab, str], Awaitable[None]], token_file: str = "") -> None:
    async def bounded() -> None:
        site = Site(token_file)
        async with asyncio.timeout(SCENARIO_S):
            url = await site.start()
            try:
                async with browser() as tab:
                    await scenario(site, tab, url)
            finally:
                await site.stop()

    asyncio.run(bounded())


def with_alarms_and_migrations(status: AgentStatus) -> AgentStatus:
    alarms = (
        RaisedAlarm("drain_overdue", "llama", "decode-1 is not empty", START_MS, 3),
        RaisedAlarm("store_went_back", "", "etcd has lost data", START_MS - 1, 1),
    )
    ends = ((f"decode-{one}", f"decode-{1 + one % 3}") for one in range(12))
    moved = tuple(RecentMigration(*pair, "drain", 1 + one, START_MS) for one, pair in enumerate(ends))
    running = (InFlightStatus("c1", "decode-1", "decode-2", "decode_load", "copying", 900, 4, 1),)
    migrations = MigrationStatus(1, running, {}, {"drain": 78}, {}, {}, 1, ("decode-1",), moved)
    models = (replace(status.models[0], migrations=migrations), *status.models[1:])
    return replace(status, models=models, alarms=alarms)


DRAWN: Final = "document.querySelectorAll('.u-over').length >= 5 && document.querySelector('.log details')"


def test_the_page_shows_the_fleet_at_all_widths_in_both_themes_and_reaches_no_other_host(tmp_path: Path) -> None:
    folder = Path(SHOTS or tmp_path)

    async def scenario(site: Site, tab: Tab, url: str) -> None:
        await site.tell(*range(60))
        await tab.size(1280, 900)
        await tab.open(url)
        await tab.shows(DRAWN)
        assert await tab.evaluate("document.querySelectorAll('.grid .w').length") == 15
        await tab.shows("document.getElementById('waits').textContent.includes('the cooldown of 9 s ends in 5 s')")
        for width in (400, 1280, 3840):
            for theme in ("light", "dark"):
                await tab.size(width, 1600, theme)
                await tab.shows(f"document.documentElement.scrollWidth === {width}")
                await tab.screenshot(folder / f"page-{width}-{theme}.png")
                assert (folder / f"page-{width}-{theme}.png").stat().st_size > 20_000
        assert tab.problems == []

    run(scenario)


@pytest.mark.skipif(not AXE.exists(), reason=f"axe-core is not at {AXE} (npm pack axe-core)")
def test_axe_finds_nothing_in_either_theme() -> None:
    async def scenario(site: Site, tab: Tab, url: str) -> None:
        def change(status: AgentStatus) -> AgentStatus:
            many = tuple(replace(model(f"model-{number:02}"), paused=number % 5 == 0) for number in range(14))
            told = replace(status, models=(*status.models, *many), config_problem="a key is unknown")
            return with_alarms_and_migrations(told)

        await site.tell(*range(30), change=change)
        await tab.size(1280, 1400)
        await tab.open(url)
        await tab.shows(DRAWN)
        await tab.evaluate("document.querySelectorAll('.log details, .alarms').forEach((one) => { one.open = true; })")
        await tab.evaluate(await asyncio.to_thread(AXE.read_text, "utf-8"))
        for width, theme in ((1280, "light"), (1280, "dark"), (400, "light"), (3840, "dark")):
            await tab.size(width, 1400, theme)
            await tab.shows(f"matchMedia('(prefers-color-scheme: {theme})').matches")
            found = await tab.evaluate(
                "axe.run().then((all) => all.violations.map((one) => `${one.id}: ` + "
                "one.nodes.map((node) => node.html + ' ' + node.failureSummary).slice(0, 3).join(' | ')))"
            )
            assert found == [], (width, theme)

    run(scenario)


def test_all_can_be_done_by_keyboard(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    focus = "(document.activeElement.textContent || document.activeElement.ariaLabel || '').trim()"

    async def scenario(site: Site, tab: Tab, url: str) -> None:
        await site.tell(*range(5))
        await tab.size(1280, 900)
        await tab.open(url)
        await tab.shows(DRAWN)

        async def tab_to(text: str) -> None:
            for _ in range(40):
                await tab.press("Tab")
                if (await tab.evaluate(focus)).startswith(text):
                    return
            raise AssertionError(f"no key reaches {text}")

        await tab_to("Skip to the fleet")
        await tab_to("llama")
        await tab_to("qwen")
        await tab.press("Enter")
        await tab.shows("document.getElementById('name').textContent === 'qwen'")
        await tab_to("Pause")
        await tab.press("Enter")
        await tab.shows("document.activeElement.name === 'token'")
        await tab.type("wrong-wrong-wrong-wrong")
        await tab.press("Enter")
        await tab.shows("document.querySelector('.error')?.textContent.includes('not the agent')")
        await tab.evaluate("document.querySelector('dialog input').focus()")
        await tab.type(TOKEN)
        await tab.press("Enter")
        await tab.shows("!document.querySelector('dialog').open")
        assert site.paused == ["qwen the live page True"]
        await tab_to("5")  # the first worker's cell
        await tab.press("ArrowRight")
        await tab.shows("document.activeElement.dataset.worker === 'decode-2'")
        await tab.shows("document.querySelector('.about').textContent.startsWith('decode-2: ready, KV')")
        await tab_to("Load, requests/s: ")
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert await tab.evaluate(outline) == "solid", "the focus is visible"
        said = "document.querySelector('#charts [role=status]').textContent"
        await tab.press("Home")
        await tab.shows(f"/^[0-9:]{{8}}: .*observed 10$/.test({said})")
        first = await tab.evaluate(said)
        await tab.press("ArrowRight")
        await tab.shows(f"{said}.slice(0, 8) > {first[:8]!r}")

    run(scenario, str(file))


def test_alarms_and_migrations_as_flows_are_shown() -> None:
    async def scenario(site: Site, tab: Tab, url: str) -> None:
        await site.tell(*range(5), change=with_alarms_and_migrations)
        await tab.size(1280, 900)
        await tab.open(url)
        await tab.shows(DRAWN)
        text = "document.getElementById('{}').textContent"
        assert "2 alarms in the last hourdrain overdue, llama: decode-1 is" in await tab.evaluate(text.format("alarms"))
        await tab.evaluate("document.querySelector('.alarms summary').click()")
        await tab.shows(
            "document.querySelectorAll('.alarms li').length === 2 && document.querySelector('.alarms').open"
        )
        assert "decode-1 is not empty · 3 times" in await tab.evaluate(text.format("alarms"))
        said = await tab.evaluate("document.querySelector('.flows').ariaLabel")
        assert said.startswith("Requests that migrated in the last 5 minutes: decode-11 to decode-3 12, decode-10 to")
        assert await tab.evaluate("document.querySelectorAll('.flows path').length") == 13
        assert await tab.evaluate("document.querySelectorAll('.flows path.running').length") == 1
        assert "5 others" in await tab.evaluate("document.querySelector('.flows ul').textContent")
        assert "decode load 0drain 78in flight 11 worker does not" in await tab.evaluate(text.format("migrations"))
        assert tab.problems == []

    run(scenario)


def test_a_page_that_lost_the_agent_says_so_and_goes_on_when_it_is_back() -> None:
    async def scenario(site: Site, tab: Tab, url: str) -> None:
        await site.tell(*range(5))
        await tab.open(url)
        await tab.shows(DRAWN)
        await site.stop()
        await tab.shows("document.getElementById('banners').textContent.includes('Reconnecting')")
        await tab.shows("/reconnecting… \\d+ s old/.test(document.getElementById('live').textContent)")
        again = Site(port=site.port)
        await again.start()
        await again.tell(9)
        await tab.shows("document.getElementById('live').textContent === 'live'")
        await tab.shows("document.getElementById('banners').textContent === ''")
        await again.stop()

    run(scenario)


def test_a_page_whose_agent_is_silent_marks_its_figures_as_old() -> None:
    async def scenario(site: Site, tab: Tab, url: str) -> None:
        await site.tell(*range(5))
        await tab.open(url)
        await tab.shows(DRAWN)
        await tab.shows("document.getElementById('banners').textContent.includes('The agent is silent.')")
        assert await tab.evaluate("document.getElementById('live').dataset.state") == "lost"
        await site.tell(9)
        await tab.shows("document.getElementById('live').textContent === 'live'")
        await tab.shows("document.getElementById('banners').textContent === ''")

    run(scenario)


def test_workers_that_vanish_and_return_are_not_called_missing_and_silent_ones_have_no_load() -> None:
    def with_pool(**changes: object) -> Change:
        return lambda status: replace(status, models=(replace(status.models[0], pools=(replace(pool(2), **changes),)),))

    async def scenario(site: Site, tab: Tab, url: str) -> None:
        await site.tell(0, change=with_pool(ready=0, fresh=0, workers=()))
        await tab.open(url)
        card = "(document.querySelector('.pool')?.textContent ?? '')"
        await tab.shows(f"{card}.includes('No worker is registered')")
        await site.tell(1, change=with_pool())
        await tab.shows(f"{card}.includes('KV cache in use by worker')")
        await site.tell(2, change=with_pool(ready=0, fresh=0, workers=()))
        await tab.shows(f"{card}.includes('No worker is registered')")
        await site.tell(3, change=with_pool())
        await tab.shows(f"{card}.includes('KV cache in use by worker')")
        await site.tell(4, change=with_pool(fresh=0, kv_usage_ratio=0.0, waiting_requests=0))
        await tab.shows(f"{card}.includes('2 silent') && {card}.includes('\u2013 KV in use')")
        await tab.shows("/KV cache in use.*decode \u2013/.test(document.getElementById('charts').textContent)")

    run(scenario)


def test_a_standby_shows_what_it_sees_and_not_what_it_once_decided() -> None:
    def standby(status: AgentStatus) -> AgentStatus:
        changed = replace(status.models[0], epoch=0, pools=(pool(2, desired=5),))
        return replace(status, leading=False, leader="agent-2", models=(changed,))

    async def scenario(site: Site, tab: Tab, url: str) -> None:
        await site.tell(*range(5), change=standby)
        await tab.open(url)
        await tab.shows("document.querySelector('.pool .count')?.textContent === '2 ready'")
        await tab.shows("document.querySelector('#fleet td .tag')?.textContent === 'standby'")
        assert "agent-2 leads and decides." in await tab.evaluate("document.getElementById('banners').textContent")

    run(scenario)


def test_an_agent_that_leads_no_shard_does_not_say_that_no_model_is_configured() -> None:
    async def scenario(site: Site, tab: Tab, url: str) -> None:
        def change(status: AgentStatus) -> AgentStatus:
            return replace(status, models=(), sharing=SharingStatus(4, (), (status.agent, "other")))

        await site.tell(1, change=change)
        await tab.open(url)
        await tab.shows("document.getElementById('empty')?.textContent.includes('leads no shard now')")
        await tab.shows("document.getElementById('banners')?.textContent.includes('on the pages of other')")
        await site.tell(2, change=lambda status: replace(status, models=()))
        await tab.shows("document.getElementById('empty')?.textContent === 'No model is configured.'")
        assert tab.problems == []

    run(scenario)


def test_a_journal_is_shown_at_the_time_of_its_slider_by_keyboard_too() -> None:
    async def scenario() -> None:
        command = [sys.executable, "-m", "loadline", "view", str(GOLDEN)]
        process = await asyncio.create_subprocess_exec(*ending_with_parent(command), stdout=asyncio.subprocess.PIPE)
        try:
            assert process.stdout is not None
            async with asyncio.timeout(SCENARIO_S), browser() as tab:
                url = re.findall(rb"http://\S+", await process.stdout.readline())[0].decode()
                await tab.size(1280, 900)
                await tab.open(url)
                await tab.shows("document.querySelector('.log details')")
                value = "Number(document.querySelector('#journal input').value)"
                last = await tab.evaluate(value)
                decisions = await tab.evaluate("document.querySelectorAll('.log details').length")
                await tab.evaluate("document.querySelector('#journal input').focus()")
                await tab.press("Home")
                await tab.shows(f"{value} < {last}")
                await tab.shows(f"document.querySelectorAll('.log details').length < {decisions}")
                await tab.evaluate("document.querySelector('[aria-label=\"One minute on\"]').click()")
                await tab.shows(f"{value} <= {last} && document.querySelector('#journal output').textContent")
                assert tab.problems == []
        finally:
            process.terminate()
            await process.wait()

    asyncio.run(scenario())


def test_without_javascript_the_tables_are_the_page() -> None:
    async def scenario(site: Site, tab: Tab, url: str) -> None:
        await site.tell(0)
        await tab.call("Emulation.setScriptExecutionDisabled", value=True)
        await tab.size(400, 900)
        await tab.open(url)
        # The text is there before the style sheet.
        loaded = "document.readyState === 'complete'"
        await tab.shows(f"{loaded} && document.body.innerText.includes('llama, sla planner')")
        assert await tab.evaluate("document.documentElement.scrollWidth") == 400, "wide tables scroll in themselves"

    run(scenario)


def test_of_1000_workers_only_the_changed_cells_are_drawn_again() -> None:
    async def scenario(site: Site, tab: Tab, url: str) -> None:
        def change(status: AgentStatus) -> AgentStatus:
            kv = status.at_ms // 5_000 % 90 / 100
            workers = tuple(worker(number, (kv + number / 1_000) % 1) for number in range(1_000))
            big = replace(pool(4), ready=1_000, desired=1_000, workers=workers)
            return replace(status, models=(replace(status.models[0], pools=(big,)),))

        await site.tell(*range(5), change=change)
        await tab.size(1280, 900)
        await tab.open(url)
        await tab.shows("document.querySelectorAll('.grid .w').length === 1000")
        await tab.evaluate(
            "window.replaced = 0; new MutationObserver((found) => { window.replaced += found.length; })"
            ".observe(document.querySelector('.grid'), {childList: true})"
        )
        for second in range(5, 15):
            await site.tell(second, change=change)
            first = round(100 * (((START_MS + 5_000 * second) // 5_000 % 90 / 100) % 1))
            await tab.shows(f"Number(document.querySelector('.grid .w').textContent) === {first}")
        assert await tab.evaluate("window.replaced") == 0

    run(scenario)
