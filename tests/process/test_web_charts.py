"""The points that the charts of the page keep and join by lines, in headless Chromium."""

import pytest

from tests.process.test_web_browser import DRAWN, Site, run
from tests.support.browser import CHROMIUM, Tab
from tests.support.statuses import START_MS

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


@pytest.mark.parametrize(
    ("seconds", "gaps"),
    [
        pytest.param([0, 60, 120, 180, 185, 190, 195], [], id="a reload has shortened the interval"),
        pytest.param([0, 60, 120, 125, 130], [], id="three of the points before it are left"),
        pytest.param([0, 5, 10, 300, 305, 310], [15], id="the agent did not run"),
    ],
)
def test_lines_break_where_the_agent_did_not_run(seconds: list[int], gaps: list[int]) -> None:
    async def scenario(site: Site, tab: Tab, url: str) -> None:
        await site.tell(0)
        await tab.open(url)
        found = await tab.evaluate(
            "import('/static/charts.js').then(({Charts}) => {"
            f" const seconds = {seconds}, charts = new Charts(document.createElement('div'));"
            " charts.setHistory({interval_ms: 5000, times_ms: seconds.map((one) => 1000 * one),"
            " series: {rate: seconds}});"
            " return charts.columns(1000 * seconds.at(-1)).filter((row) => row.rate === undefined)"
            ".map((row) => row.at / 1000); })"
        )
        assert found == gaps

    run(scenario)
