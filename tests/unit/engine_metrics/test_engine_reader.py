from typing import Any

import pytest

from loadline.engine_metrics.engine_reader import EngineReader
from loadline.engine_metrics.engine_reading import EngineReading
from loadline.engine_metrics.tables import ENGINES, detect
from loadline.errors import NotAnExposition
from loadline.sidecar.engine_record import record_of
from loadline.sidecar.options import SidecarOptions
from tests.support.engine_pages import RECORDED_VLLM, page, vllm


def read(*pages: dict[str, float | str], engine: str = "vllm") -> EngineReading:
    """Return the reading of the last page; they are a second apart."""
    reader = EngineReader(engine)
    readings = [reader.read(page(series), 1_000 * number) for number, series in enumerate(pages, start=1)]
    return readings[-1]


def load(series: dict[str, float | str], engine: str = "vllm") -> Any:
    return read(series, engine=engine).ranks[0]


def test_a_recorded_page_of_vllm_is_read() -> None:
    reading = EngineReader("vllm").read(RECORDED_VLLM, 1_000)
    assert (reading.model, reading.kv_blocks_total, reading.block_size_tokens) == ("tiny", 4_096, 128)
    assert (reading.requests, reading.started_ms, reading.traffic) == (4, 1_795_362_335_850, None)
    [rank] = reading.ranks
    assert (rank.running_requests, rank.waiting_requests, rank.kv_blocks_used) == (2, 2, 22)


def test_the_means_of_an_interval_are_those_of_its_requests() -> None:
    before = vllm(finished=100, prompts=(100, 50_000), ttft_s=80.0, itl=(9_000, 180.0), outputs=(100, 9_000))
    after = vllm(
        running=3,
        waiting=1,
        finished=104,
        prompts=(107, 53_500),
        ttft_s=82.1,
        itl=(9_050, 182.0),
        outputs=(104, 9_400),
    )
    reading = read(before, after)
    assert reading.traffic is not None
    assert (reading.traffic.arrivals, reading.traffic.completed, reading.traffic.interval_ms) == (8, 4, 1_000)
    assert reading.traffic.isl_tokens == 500
    assert reading.traffic.osl_tokens == 100
    assert reading.traffic.ttft_ms == pytest.approx(300)
    [rank] = reading.ranks
    assert rank.ttft_ms == pytest.approx(300)
    assert rank.itl_ms == pytest.approx(40)
    assert rank.sample().queued_prefill_tokens is None, "agents estimate it, for the role of the worker"


def test_latencies_are_repeated_until_there_are_new_ones() -> None:
    before, after = vllm(), vllm(itl=(10, 0.2))
    assert read(before, after, after).ranks[0].itl_ms == pytest.approx(20)
    assert read(before, after, after).traffic == read(after, after).traffic


@pytest.mark.parametrize(
    "after",
    [
        vllm(finished=3, itl=(10, 0.5)),  # all counters start at 0 again
        vllm(finished=900, itl=(99_999, 5_000.0), started_s=1.8e9),  # it served more than before while nobody looked
        vllm(finished=101, itl=(9, 0.2)),
    ],
)
def test_a_restart_yields_no_traffic_and_no_latencies(after: dict[str, float | str]) -> None:
    before = vllm(finished=100, itl=(9_000, 180.0))
    reading = read(before, after)
    assert reading.restarted
    assert reading.traffic is None
    assert reading.ranks[0].itl_ms is None
    again = read(before, after, after)
    assert (again.restarted, again.traffic is not None) == (False, True)


def test_a_rank_that_another_process_shows_later_counts_anew() -> None:
    """Rank 1 of the former process served 500 requests, and that of the new one 3."""
    before = vllm(finished=100) | vllm(finished=500, rank=1)
    after = vllm(finished=200, started_s=1.8e9)
    reading = read(
        before, after, after | vllm(finished=201, started_s=1.8e9) | vllm(finished=3, rank=1, started_s=1.8e9)
    )
    assert not reading.restarted
    assert reading.traffic is not None
    assert reading.traffic.completed == 4


def labelled(started_s: float, finished: float) -> bytes:
    """Return a page as it is made of an answer of Prometheus, which may begin with the start of the process."""
    line = f'process_start_time_seconds{{job="vllm",note="{{}} 1"}} {started_s}\n'.encode()
    return line + page({name: value for name, value in vllm(finished=finished).items() if "start" not in name})


def test_the_start_of_a_process_is_read_with_labels_and_kept_until_it_is_another_one() -> None:
    reader = EngineReader("vllm")
    starts = [
        (reading.started_ms, reading.restarted)
        for reading in (
            reader.read(labelled(1.7e9, 100), 1_000),
            reader.read(labelled(1.7e9 + 0.25, 101), 2_000),
            reader.read(page(vllm(finished=101) | {"process_start_time_seconds": "unknown"}), 3_000),
            reader.read(labelled(1.8e9, 900), 4_000),
        )
    ]
    first, second = 1_700_000_000_000, 1_800_000_000_000
    assert starts == [(first, False), (first, False), (first, False), (second, True)]


def test_of_several_processes_none_is_the_start_of_the_engine() -> None:
    reader = EngineReader("vllm")
    other = b'process_start_time_seconds{container="otel"} 1.6e9\n'
    starts = [
        reader.read(text, 1_000 * number).started_ms
        for number, text in enumerate((other + labelled(1.7e9, 1), labelled(1.7e9, 2), other + labelled(1.8e9, 3)))
    ]
    assert starts == [None, 1_700_000_000_000, 1_700_000_000_000]


def test_a_metric_that_was_missing_does_not_count_its_whole_past() -> None:
    whole = vllm(finished=1_000_000, itl=(10**9, 10**7))
    part = {name: value for name, value in whole.items() if "success" not in name and "latency" not in name}
    assert read(part, whole).traffic is None
    after = vllm(finished=1_000_002, itl=(10**9 + 10, 10**7 + 1))
    reading = read(whole, part, after)
    assert reading.traffic is not None
    assert reading.traffic.completed == 2
    assert reading.ranks[0].itl_ms == pytest.approx(100)


def test_requests_of_a_reason_that_is_new_count() -> None:
    series = vllm(finished=5)
    new = {**vllm(finished=6), 'vllm:request_success_total{engine="0",finished_reason="new"}': 2.0}
    traffic = read(series, new).traffic
    assert traffic is not None
    assert traffic.completed == 3


def test_an_engine_that_only_declares_its_metrics_is_not_read() -> None:
    with pytest.raises(NotAnExposition, match="no series yet"):
        EngineReader("vllm").read(b"# TYPE vllm:num_requests_running gauge\n", 1_000)


def test_each_rank_has_a_load_and_traffic_is_their_sum() -> None:
    def ranks(count: int) -> dict[str, float | str]:
        return {
            **vllm(rank=0, running=1, finished=count, prompts=(count, count * 10), blocks="100"),
            **vllm(rank=10, running=2, finished=count, prompts=(count, count * 30), blocks="100"),
            **vllm(rank=2, running=3, blocks="100"),
        }

    reading = read(ranks(1), ranks(3))
    assert [(rank.rank, rank.running_requests) for rank in reading.ranks] == [(0, 1), (1, 3), (2, 2)]
    assert (reading.requests, reading.kv_blocks_total) == (6, 100)
    assert reading.traffic is not None
    assert (reading.traffic.completed, reading.traffic.isl_tokens) == (4, 20)
    assert [sample.isl_tokens for sample in reading.samples()] == [10, None, 30]


def test_latencies_without_a_rank_are_those_of_all_ranks() -> None:
    def sglang(seconds: float, count: int) -> dict[str, float | str]:
        ranks = {f'sglang:num_running_reqs{{dp_rank="{rank}",tp_rank="{rank}"}}': rank for rank in (0, 1)}
        name = "sglang:time_to_first_token_seconds"
        return {**ranks, f'{name}_sum{{model_name="m"}}': seconds, f'{name}_count{{model_name="m"}}': count}

    reading = read(sglang(1.0, 1), sglang(3.0, 2), engine="sglang")
    assert [(rank.running_requests, rank.ttft_ms) for rank in reading.ranks] == [(0, 2_000), (1, 2_000)]


def test_ranks_are_numbered_from_zero_and_keep_their_numbers_until_a_restart() -> None:
    """With external or hybrid balancing, a server of vLLM has the series of its own ranks only."""

    def ranks(*numbers: int, finished: int = 5) -> bytes:
        return b"".join(page({**vllm(rank=rank, running=rank, finished=finished)}) for rank in numbers)

    reader = EngineReader("vllm")
    pages = [ranks(7), ranks(9, 7, 8), ranks(6, 7, 9), ranks(9, 8, finished=1)]
    found = [
        {load.rank: load.running_requests for load in reader.read(text, 1_000 * number).ranks}
        for number, text in enumerate(pages, start=1)
    ]
    assert found == [{0: 7}, {0: 7, 1: 8, 2: 9}, {0: 7, 2: 9, 3: 6}, {0: 8, 1: 9}]


def test_a_rank_that_starts_above_zero_is_the_only_one_in_its_record() -> None:
    reading = read({**vllm(rank=7, running=3)})
    assert record_of(SidecarOptions(worker="w"), reading, 1).data_parallel_size == 1


@pytest.mark.parametrize("rank", ["1024", "-1", "one", "99999999999999999999", "0000099999", "²"])
def test_a_series_of_an_impossible_rank_is_ignored_and_counted(rank: str) -> None:
    reader = EngineReader("vllm")
    series = {**vllm(), f'vllm:num_requests_running{{engine="{rank}"}}': 5}
    assert [load.rank for load in reader.read(page(series), 1).ranks] == [0]
    assert reader.warnings == {"rank_ignored": 1}
    with pytest.raises(NotAnExposition, match="no series has a rank"):
        EngineReader("vllm").read(page({f'vllm:num_requests_running{{engine="{rank}"}}': 5}), 1)


def test_more_than_the_capacity_is_the_capacity_and_counted() -> None:
    reader = EngineReader("vllm")
    [rank] = reader.read(page(vllm(usage=1.7)), 1).ranks
    assert (rank.kv_usage_ratio, rank.kv_blocks_used) == (1.0, 1_000)
    assert reader.warnings == {"above_capacity": 1}


@pytest.mark.parametrize("value", [-1, 1e300, -1e300, 65_537])
def test_an_impossible_value_is_unknown_and_counted(value: float) -> None:
    reader = EngineReader("vllm")
    reading = reader.read(page(vllm(running=value)), 1)
    assert reading.ranks[0].running_requests is None
    assert reading.requests is None
    assert reader.warnings == {"impossible_running_requests": 1}


def test_blocks_that_are_not_known_yet_leave_the_ratio() -> None:
    rank = load(vllm(usage=0.5, blocks="None"))
    assert (rank.kv_blocks_total, rank.kv_blocks_used, rank.kv_usage_ratio) == (None, None, 0.5)


def test_old_names_of_vllm_are_read() -> None:
    def series(count: int) -> dict[str, float | str]:
        return {
            "vllm:num_requests_running": 4,
            "vllm:num_requests_waiting": 2,
            "vllm:num_requests_swapped": 3,
            "vllm:gpu_cache_usage_perc": 0.25,
            "vllm:time_per_output_token_seconds_sum": count * 0.05,
            "vllm:time_per_output_token_seconds_count": count,
            "vllm:gpu_prefix_cache_queries_total": count * 100,
            "vllm:gpu_prefix_cache_hits_total": count * 30,
            "vllm:request_success_total": count,
        }

    reading = read(series(1), series(11))
    [rank] = reading.ranks
    assert (rank.running_requests, rank.waiting_requests, rank.kv_usage_ratio) == (4, 5, 0.25)
    assert rank.itl_ms == pytest.approx(50)
    assert reading.traffic is not None
    assert reading.traffic.prefix_hit_ratio == pytest.approx(0.3)


def test_requests_that_wait_by_reason_are_counted_once() -> None:
    reasons: dict[str, float | str] = {
        f'vllm:num_requests_waiting_by_reason{{reason="{reason}"}}': 2 for reason in ("capacity", "deferred")
    }
    assert load(reasons).waiting_requests == 4
    assert load({**reasons, "vllm:num_requests_waiting": 4}).waiting_requests == 4


@pytest.mark.parametrize("copied", ["tp_rank", "pp_rank", "moe_ep_rank"])
def test_parallel_copies_of_sglang_are_counted_once(copied: str) -> None:
    series: dict[str, float | str] = {}
    for rank in range(4):
        labels = f'model_name="m",dp_rank="0",{copied}="{rank}"'
        series[f"sglang:num_running_reqs{{{labels}}}"] = 7
        series[f"sglang:num_decode_transfer_queue_reqs{{{labels}}}"] = 2
        series[f"sglang:num_queue_reqs{{{labels}}}"] = 1
        series[f"sglang:max_total_num_tokens{{{labels}}}"] = 64_000
        series[f"sglang:page_size{{{labels}}}"] = 64
        series[f"sglang:token_usage{{{labels}}}"] = 0.5
    reading = read(series, engine="sglang")
    [first] = reading.ranks
    assert (reading.requests, reading.model) == (10, "m")
    assert (first.kv_blocks_used, first.kv_blocks_total, reading.block_size_tokens) == (500, 1_000, 64)


def test_requests_of_sglang_by_priority_are_parts_of_a_total_and_finished_ones_are_added() -> None:
    def series(finished: int) -> dict[str, float | str]:
        found: dict[str, float | str] = {}
        for tensor in range(2):
            for priority, running, waiting in (("", 5, 4), ("0", 3, 4), ("10", 2, 0)):
                labels = f'model_name="m",tp_rank="{tensor}",priority="{priority}"'
                found[f"sglang:num_running_reqs{{{labels}}}"] = running
                found[f"sglang:num_queue_reqs{{{labels}}}"] = waiting
        return found | {f'sglang:num_requests_total{{priority="{priority}"}}': finished for priority in (0, 10)}

    reading = read(series(100), series(103), engine="sglang")
    [rank] = reading.ranks
    assert (rank.running_requests, rank.waiting_requests) == (5, 4)
    assert reading.traffic is not None
    assert reading.traffic.completed == 6


def test_tensorrt_llm_tells_its_blocks_and_batch_slots() -> None:
    names = {
        "num_requests_running": 5,
        "num_requests_waiting": 1,
        "num_generation_requests": 4,
        "kv_cache_used_blocks": 30,
        "kv_cache_max_blocks": 40,
        "kv_cache_tokens_per_block": 32,
        "max_batch_size_runtime": 64,
    }
    reading = read({f"trtllm_{name}": value for name, value in names.items()}, engine="trtllm")
    [rank] = reading.ranks
    assert (rank.kv_blocks_used, rank.kv_blocks_total, rank.decode_batch_requests) == (30, 40, 4)
    assert (reading.max_batch_requests, reading.block_size_tokens) == (64, 32)


def test_tgi_tells_queue_batch_and_lengths() -> None:
    def series(count: int) -> dict[str, float | str]:
        return {
            "tgi_queue_size": 1,
            "tgi_batch_current_size": 2,
            'tgi_request_success{kind="stream"}': count,
            'tgi_request_success{kind="single"}': count,
            "tgi_request_input_length_sum": count * 200,
            "tgi_request_input_length_count": count * 2,
            'tgi_request_input_length_bucket{le="128"}': count * 2,
            'tgi_request_input_length_bucket{le="+Inf"}': count * 2,
        }

    traffic = read(series(1), series(4), engine="tgi").traffic
    assert traffic is not None
    assert (traffic.completed, traffic.isl_tokens) == (6, 100)
    assert traffic.isl_histogram is not None
    assert (traffic.isl_histogram.bounds, traffic.isl_histogram.counts) == ((128.0,), (6, 0))


def test_a_gauge_without_counters_tells_no_traffic() -> None:
    gauges: dict[str, float | str] = {"vllm:num_requests_running": 1, "vllm:num_requests_waiting": 0}
    assert read(gauges, gauges).traffic is None


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_the_engine_of_a_page_is_recognised(engine: str) -> None:
    names = sorted(ENGINES[engine].names)
    assert detect(page({names[0]: 1})) == ("vllm" if engine == "llm-d-sim" else engine)
    assert detect(page({})) is None
    assert all(name.startswith(ENGINES[engine].prefix) for name in names)
