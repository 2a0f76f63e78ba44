from loadline.core.vocabulary.samples import Histogram
from loadline.engine_metrics.figures import FigureReader, Figures
from loadline.engine_metrics.tables import SGLANG, MetricTable
from tests.support.engine_pages import page

ROUTER = MetricTable(
    prefix="router_",
    group_labels=("model", "model_name"),
    gauges={"in_flight": (("router_running",), ("router_queue",)), "kv_usage_ratio": (("router_kv",),)},
    counters={"arrivals": (("router_requests_total",),)},
    histograms={"ttft_ms": ("router_ttft_seconds", "router_first_token_seconds")},
)


def figures(*pages: dict[str, float | str]) -> dict[str, Figures]:
    reader = FigureReader(ROUTER)
    return [reader.read(page(series)) for series in pages][-1]


def test_series_are_added_by_group_and_of_ratios_the_largest_counts() -> None:
    found = figures(
        {
            'router_running{model="a",pod="1"}': 2,
            'router_running{model="a",pod="2"}': 3,
            'router_queue{model_name="a"}': 10,
            'router_running{model="b"}': 1,
            'router_kv{model="a",pod="1"}': 0.2,
            'router_kv{model="a",pod="2"}': 0.7,
        }
    )
    assert found["a"].gauges == {"in_flight": 15, "kv_usage_ratio": 0.7}
    assert found["b"].gauges == {"in_flight": 1}


def test_increases_are_those_of_each_series() -> None:
    before: dict[str, float | str] = {
        'router_requests_total{model="a",pod="1"}': 10,
        'router_requests_total{model="a",pod="2"}': 5,
    }
    after: dict[str, float | str] = {
        'router_requests_total{model="a",pod="1"}': 13,
        'router_requests_total{model="a",pod="2"}': 9,
    }
    assert figures(before) == {}
    assert figures(before, after)["a"].counts == {"arrivals": 7}


def test_one_counter_that_falls_discards_all_increases_of_the_page() -> None:
    before = {"router_requests_total": 10, "router_ttft_seconds_sum": 1, "router_ttft_seconds_count": 5}
    after = {"router_requests_total": 9, "router_ttft_seconds_sum": 5, "router_ttft_seconds_count": 9}
    reader = FigureReader(ROUTER)
    found = [reader.read(page({**series})) for series in (before, after)][-1]
    assert (reader.restarted, found[""].counts, found[""].distributions) == (True, {}, {})
    assert reader.warnings["counter_fell"] == 1


def test_a_metric_with_an_older_name_is_found() -> None:
    name = "router_first_token_seconds"
    found = figures({f"{name}_sum": 1, f"{name}_count": 1}, {f"{name}_sum": 1.5, f"{name}_count": 3})
    assert found[""].mean("ttft_ms") == 250


def test_groups_beyond_the_limit_are_ignored_and_counted() -> None:
    reader = FigureReader(ROUTER, groups_max=2)
    found = reader.read(page({f'router_running{{model="{name}"}}': 1 for name in "abcd"}))
    assert sorted(found) == ["a", "b"]
    assert reader.warnings["too_many_groups"] == 2


def test_bins_of_copies_count_once_as_their_sum_does() -> None:
    """Two tensor-parallel ranks tell of the same 4 prompts: there were 6 in the bins, and none of the longest."""
    name, reader = "sglang:prompt_tokens_histogram", FigureReader(SGLANG)
    for read in (1, 2):
        lines: dict[str, float | str] = {}
        for rank in (0, 1):
            for bound, below in (("100", 1), ("1000", 3), ("+Inf", 4)):
                lines[f'{name}_bucket{{tp_rank="{rank}",le="{bound}"}}'] = read * below
            lines[f'{name}_count{{tp_rank="{rank}"}}'] = read * 4
            lines[f'{name}_sum{{tp_rank="{rank}"}}'] = read * 2_000
        found = reader.read(page(lines))
    assert found[""].histogram("isl_tokens") == Histogram((100.0, 1_000.0), (1, 2, 1))
