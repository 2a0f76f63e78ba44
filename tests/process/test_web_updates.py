"""What an open page keeps while statuses arrive: points of the charts, place and focus, in headless Chromium."""

import pytest
from msgspec.structs import replace

from loadline.core.vocabulary.status import AgentStatus
from tests.process.test_web_browser import DRAWN, Site, run
from tests.support.browser import CHROMIUM, Tab
from tests.support.statuses import START_MS, model

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian: apt-get install chromium)"),
]


def test_a_page_that_is_open_for_a_day_keeps_the_points_of_an_hour() -> None:
    async def scenario(site: Site, tab: Tab, url: str) -> None:
        await site.tell(*range(5))
        await tab.open(url)
        await tab.shows(DRAWN)
        points, hours = await tab.evaluate(
            "import('/static/charts.js').then(({Charts}) => {"
            " const charts = new Charts(document.createElement('div')); let most = 0;"
            f" for (let second = 0; second < 86400; second += 1) {{ charts.add({START_MS} + 1000 * second,"
            " {rate: second}); most = Math.max(most, charts.points.length); }"
            " return [most, (charts.points.at(-1).at - charts.points[0].at) / 3600000]; })"
        )
        assert 720 <= points <= 735  # one each 5 s, and the minute after which the oldest are dropped
        assert 0.99 <= hours <= 1.02

    run(scenario)


def test_lines_break_where_the_agent_did_not_run() -> None:
    async def scenario(site: Site, tab: Tab, url: str) -> None:
        await site.tell(0)
        await tab.open(url)
        seconds = [0, 5, 10, 300, 305, 310]
        found = await tab.evaluate(
            "import('/static/charts.js').then(({Charts}) => {"
            f" const seconds = {seconds}, charts = new Charts(document.createElement('div'));"
            " charts.setHistory({interval_ms: 5000, times_ms: seconds.map((one) => 1000 * one),"
            " series: {rate: seconds}});"
            " return charts.columns(1000 * seconds.at(-1)).filter((row) => row.rate === undefined)"
            ".map((row) => row.at / 1000); })"
        )
        assert found == [15]

    run(scenario)


def test_a_reload_that_changes_the_interval_loads_the_history_once_more() -> None:
    async def scenario(site: Site, tab: Tab, url: str) -> None:
        loads = "performance.getEntriesByType('resource').filter((one) => one.name.includes('/api/history')).length"
        await site.tell(*range(5))
        await tab.open(url)
        await tab.shows(DRAWN)
        await site.tell(5)
        assert await tab.evaluate(loads) == 1
        site.models = 1_000
        await site.tell(6)
        await tab.shows(f"{loads} === 2")
        await site.tell(*range(7, 10))
        await tab.shows(f"document.querySelector('#log, .log') && {loads} === 2")

    run(scenario)


def test_a_long_list_of_models_keeps_its_place_and_focus_while_its_rates_change() -> None:
    async def scenario(site: Site, tab: Tab, url: str) -> None:
        def change(status: AgentStatus) -> AgentStatus:
            rate = float(status.at_ms // 5_000 % 100)
            traffic = replace(status.models[0].traffic, requests_per_s=rate)
            return replace(status, models=tuple(replace(model(f'm"{n}'), traffic=traffic) for n in range(60)))

        await site.tell(0, change=change)
        await tab.open(url)
        await tab.shows("document.querySelectorAll('#fleet tbody tr').length === 60")
        await tab.evaluate("document.querySelectorAll('#fleet tbody a')[40].focus()")
        place = "[document.querySelector('.many').scrollTop, document.activeElement.textContent]"
        before = await tab.evaluate(place)
        assert before[0] > 0
        row = await tab.evaluate("document.querySelectorAll('#fleet tbody tr')[40].textContent")
        await site.tell(1, change=change)
        await tab.shows(f"document.querySelectorAll('#fleet tbody tr')[40].textContent !== {row!r}")
        assert await tab.evaluate(place) == before

    run(scenario)
