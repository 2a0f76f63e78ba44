"""Rows and pages of simulations and comparisons."""

import re
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from loadline import formatting, report
from loadline.report.comparison import highest_counts
from loadline.sim.compare.bounds import WorkBound
from loadline.sim.compare.comparison import ComparedRun, Comparison
from loadline.sim.result import MigrationTotals, Percentiles, ScalingAction
from tests.support.simulation_results import comparison, pool_series, simulation_result

EVIL = '<script>alert("x")</script>&$\\alpha$'
# Names of things, not places to fetch them from.
NAMESPACES = {"http://www.w3.org/1999/xlink", "http://www.w3.org/2000/svg"}
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Outline(HTMLParser):
    """Titles and tags of a page; fails if tags are not nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.references: list[str] = []
        self.titles: list[str] = []
        self.texts: list[str] = []
        self.ids: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in {"href", "src", "xlink:href", "action", "data", "srcset", "poster"}:
                self.references.append(value or "")
            if name == "id":
                self.ids.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in {"h1", "h2", "h3"}:
            self.titles.append(data)
        elif self.open and self.open[-1] not in {"style", "script"}:
            self.texts.append(data)


def simulation_page(**changes: object) -> str:
    return report.simulation_page(simulation_result(**changes), "some = knobs", "loadline simulate --trace t")


@pytest.fixture(scope="module", name="usual")
def usual_page() -> str:
    return simulation_page()


def check_contained(text: str) -> Outline:
    """Check that a page is one file without external resources or scripts, whatever names it contains."""
    page = Outline(text)
    assert all(reference.startswith("#") for reference in page.references)
    assert set(re.findall(r"https?://[^\s\"'<)]+", text)) <= NAMESPACES
    assert not re.search(r"@import|url\((?!['\"]?#)|@font-face", text)
    assert not {"script", "iframe", "link", "img", "object"} & set(page.tags)
    return page


def test_a_simulation_has_all_its_sections(usual: str) -> None:
    page = check_contained(usual)
    assert page.titles == [
        "loadline simulate: mine",
        "Results",
        "Load and latencies",
        "Load",
        "Latencies by arrival time",
        *(
            title
            for pool in ("prefill", "decode")
            for title in (f"Pool {pool}", "Workers desired, ready, starting and draining", "Queue and KV cache")
        ),
        "Decisions",
        "Configuration",
        "Reproduce",
    ]
    assert page.tags.count("svg") == 2 + 2 * 2
    assert {"87.5%", "0.40", "some = knobs", "loadline simulate --trace t", "0:02:59"} <= set(page.texts)
    assert "flap: it was empty; the guard agreed" in page.texts


def test_plots_have_titles_and_legends(usual: str) -> None:
    texts = Outline(usual).texts
    shown = {
        "TTFT, ms",
        "objective, 500 ms",
        "objective, 20 ms",
        "p95",
        "desired",
        "flap, scale down",
        "decision, scale up",
    }
    assert shown <= {text.strip() for text in texts}


def test_plots_follow_the_colours_of_the_page(usual: str) -> None:
    used = set(re.findall(r"var\(--([a-z]+)\)", usual))
    assert {"ink", "blue", "orange", "green", "red", "faint"} <= used
    for variable in used:
        assert len(re.findall(rf"--{variable}: #", usual)) == 2, variable  # one for light, one for dark
    pictures = "".join(re.findall(r"<svg.*?</svg>", usual, re.DOTALL))
    assert not re.search(r"(fill|stroke): #(?!000000)", pictures)


def test_ids_are_unique_across_plots(usual: str) -> None:
    ids = Outline(usual).ids
    assert len(ids) == len(set(ids))


def test_the_same_outcome_gives_the_same_page(usual: str) -> None:
    assert simulation_page() == usual


def test_names_cannot_break_a_page() -> None:
    lines = simulation_result().series
    lines.pools[0] = pool_series(EVIL, "prefill")
    actions = [ScalingAction("1", 1.0, EVIL, 1, 2, [EVIL], flap=False)]
    changed = simulation_result(name=EVIL, trace=EVIL, model=EVIL, planner=EVIL, series=lines, actions=actions)
    check_contained(report.simulation_page(changed, EVIL, EVIL))
    both = comparison()
    both.runs.append(type(both.runs[0])("config", changed))
    page = check_contained(report.comparison_page(both, [(EVIL, EVIL)], EVIL))
    assert EVIL[:28] in {text.strip() for text in page.texts}  # beside its point in the plot


def test_a_trace_without_load_is_drawn() -> None:
    lines = simulation_result().series
    nothing = type(lines)(60.0, [], [], [], [], [], [], [], [], [])
    page = check_contained(simulation_page(series=nothing, actions=[], duration_s=0.0))
    assert "No decision changed a worker count." in page.texts


def test_many_decisions_do_not_cover_their_plot() -> None:
    many = [
        ScalingAction(str(at), float(at), "decode", 1 + at % 2, 2 - at % 2, ["why"], flap=at % 2 == 0)
        for at in range(200)
    ]
    texts = {text.strip() for text in Outline(simulation_page(actions=many)).texts}
    assert "flap" in texts
    assert not {"flap, scale up", "decision, scale down"} & texts


def test_a_long_list_of_decisions_is_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadline.report.simulation.ACTIONS_MAX", 1)
    texts = Outline(simulation_page()).texts
    assert "The first 1 of 2 decisions; the JSON result has all." in texts
    assert "0:02:59" not in texts


def test_a_comparison_has_table_plot_and_every_run() -> None:
    text = report.comparison_page(comparison(), [("mine", "knobs = 1"), ("hpa", "knobs = 2")], "loadline compare")
    page = check_contained(text)
    assert page.titles == [
        "loadline compare: azure",
        "Results",
        "Attainment against GPU-hours",
        "Workers over time",
        "mine",
        "mine, clairvoyant",
        "hpa",
        "Configurations",
        "Reproduce",
    ]
    assert {"work bound", "0.12", "knobs = 2", "loadline compare"} <= set(page.texts)
    assert "work bound, 0.12 GPU-hours" in {text.strip() for text in page.texts}
    [scatter] = re.findall(r"<svg[^>]*Attainment.*?</svg>", text, re.DOTALL)
    assert {"mine", "hpa"} <= set(re.findall(r">([^<>\n]+)</text>", scatter))


def test_a_page_of_many_long_runs_stays_below_1_mb() -> None:
    times = [float(second) for second in range(0, 86_400, 10)]
    counts = [int(second) // 60 % 9 for second in times]
    pools = [
        replace(pool_series(name, name), desired=counts, ready=counts, starting=counts, draining=counts)
        for name in ("prefill", "decode")
    ]
    day = simulation_result(duration_s=86_400.0)
    day = replace(day, series=replace(day.series, at_s=times, pools=pools))
    runs = [ComparedRun("config", replace(day, name=f"run {number}")) for number in range(13)]
    text = report.comparison_page(Comparison(WorkBound(1.0), runs), [], "loadline compare")
    assert len(text.encode()) < 1_000_000


def test_a_comparison_without_requests_is_drawn() -> None:
    nothing = Comparison(WorkBound(0.0), [ComparedRun("config", simulation_result(gpu_hours=0.0, requests=0))])
    assert "0 requests in 4 min" in report.comparison_page(nothing, [], "loadline compare")


def test_results_name_objectives_and_counts() -> None:
    found = {row[0]: row[1] for row in report.result_rows(simulation_result())}
    assert found["trace"] == "azure: 210 requests in 4 min"
    assert found["TTFT"] == "90.0% within 500 ms; p50 123 ms, p95 4567 ms, p99 30.0 s"
    assert found["ITL"] == "99.9% within 20 ms; p50 11.1 ms, p95 20 ms, p99 -"
    assert found["GPU-hours"] == "0.40 (prefill 0.15, decode 0.25); peak workers: prefill 2, decode 2"
    assert found["scaling"] == "2 actions, 1 flap (reversed within 5 min)"
    assert found["requests"] == "207 finished, 2 unfinished, 1 refused, 0 dropped, 4 retried, 5 preempted"


def test_every_run_and_the_bound_have_a_row() -> None:
    rows = report.comparison_rows(comparison())
    assert [row[0] for row in rows] == ["mine", "mine, clairvoyant", "hpa", "work bound"]
    assert {len(row) for row in rows} == {len(report.COMPARISON_HEADER)}
    at = report.COMPARISON_HEADER.index("GPU-hours")
    assert [row[at] for row in rows] == ["0.40", "0.40", "0.80", "0.12"]


def test_runs_with_migrations_have_a_migration_table() -> None:
    found = comparison()
    assert report.migration_rows(found) == []
    busy = simulation_result(
        migrations=MigrationTotals(20, 3, 2, 15, 40_000), token_gap_max_ms=Percentiles(10.0, 90.0, 800.0)
    )
    rows = report.migration_rows(Comparison(found.work_bound, [ComparedRun("config", busy), *found.runs]))
    assert {len(row) for row in rows} == {len(report.MIGRATION_HEADER)}
    assert rows[0][2] == "800 ms"
    assert [row[5:8] for row in rows[:2]] == [("20", "3", "2"), ("0", "0", "0")]
    labelled = {row[0]: row[1] for row in report.result_rows(busy)}
    assert (
        labelled["migration"] == "1 drain, 6 requests migrated by 20 commands (3 refused, 2 aborted), 40000 KV tokens"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (formatting.percent(1.0), "100.0%"),
        (formatting.percent(0.99999), "99.9%"),
        (formatting.percent(0.0), "0.0%"),
        (formatting.ms(None), "-"),
        (formatting.ms(5.417), "5.42 ms"),
        (formatting.ms(99.99), "100 ms"),
        (formatting.duration(59.0), "59 s"),
        (formatting.duration(2_400.0), "40 min"),
        (formatting.duration(86_400.0), "24 h"),
        (formatting.clock(3_723.9), "1:02:03"),
        (formatting.plural(1, "flap"), "1 flap"),
        (formatting.plural(0, "flap"), "0 flaps"),
    ],
)
def test_numbers_are_formatted(text: str, expected: str) -> None:
    assert text == expected


def test_the_panels_of_a_pool_share_the_axis_of_the_run_with_most_workers() -> None:
    def run(**most: int) -> Any:
        pools = [SimpleNamespace(pool=name, desired=[1, count], ready=[1, 1]) for name, count in most.items()]
        return SimpleNamespace(outcome=SimpleNamespace(series=SimpleNamespace(pools=pools)))

    compared: Any = SimpleNamespace(runs=[run(prefill=2, decode=7), run(prefill=5), run(decode=0)])
    assert highest_counts(compared) == {"prefill": 5, "decode": 7}
