"""Pages of routers: the traffic of each model, over versions, restarts, and workers and models that do not count."""

import random
from collections.abc import Mapping
from contextlib import suppress

import pytest

from loadline.core.vocabulary.samples import Histogram, TrafficSample
from loadline.engine_metrics.router_reader import RouterReader
from loadline.engine_metrics.router_tables import ROUTERS
from loadline.errors import NotAnExposition
from loadline.wire.codec import Codec, encode
from loadline.wire.messages import TrafficReport
from loadline.wire.subjects import Subjects

MODELS = {"meta/llama": "llama", "llama-lora": "llama", "qwen": "qwen"}
WORKERS = {"http://10.0.0.7:8000": "llama", "http://10.0.0.8:8000": "qwen"}


def page(lines: Mapping[str, float]) -> bytes:
    return "".join(f"{name} {value}\n" for name, value in lines.items()).encode()


def reader(router: str, default: str = "") -> RouterReader:
    return RouterReader(ROUTERS[router], MODELS, default, WORKERS.get)


def between(
    router: str, before: Mapping[str, float], after: Mapping[str, float], default: str = ""
) -> dict[str, TrafficSample]:
    """Return the traffic between two pages that are 2 s apart."""
    read = reader(router, default)
    assert read.read(page(before), 1_000) == {}, "one page is no interval"
    return read.read(page(after), 3_000)


@pytest.mark.parametrize(
    ("prefix", "running", "tokens", "queue"),
    [
        ("llm_d_epp_", "request_running", "request_", "llm_d_epp_"),
        ("inference_objective_", "running_requests", "", "inference_extension_"),
        ("inference_model_", "running_requests", "", "inference_extension_"),
    ],
)
def test_the_endpoint_picker_of_llm_d_in_three_generations(prefix: str, running: str, tokens: str, queue: str) -> None:
    labels = '{model_name="meta/llama",target_model_name="x"}'

    def lines(requests: int, flight: int, queued: int) -> dict[str, float]:
        return {
            f"{prefix}request_total{labels}": requests,
            f"{prefix}request_duration_seconds_count{labels}": requests - flight,
            f"{prefix}{running}{labels}": flight,
            f"{prefix}{tokens}input_tokens_sum{labels}": 500 * requests,
            f"{prefix}{tokens}input_tokens_count{labels}": requests,
            f"{queue}flow_control_queue_size{labels}": queued,
        }

    found = between("llm-d", lines(100, 4, 0), lines(120, 10, 3))
    assert found == {"llama": TrafficSample(0, 2_000, 20, 14, 3, 10, isl_tokens=500.0)}


def dynamo(started: float | None, finished: float, active: float, ttft_s: float) -> dict[str, float]:
    name = "dynamo_frontend_"
    lines = {
        f'{name}requests_total{{model="qwen",status="success"}}': finished - 1,
        f'{name}requests_total{{model="qwen",status="error"}}': 1,
        f'{name}active_requests{{model="qwen"}}': active,
        f'{name}time_to_first_token_seconds_sum{{model="qwen"}}': ttft_s * finished,
        f'{name}time_to_first_token_seconds_count{{model="qwen"}}': finished,
        f'{name}input_sequence_tokens_sum{{model="qwen"}}': 100 * finished,
        f'{name}input_sequence_tokens_count{{model="qwen"}}': finished,
        f'{name}input_sequence_tokens_bucket{{model="qwen",le="128"}}': finished - 1,
        f'{name}input_sequence_tokens_bucket{{model="qwen",le="+Inf"}}': finished,
        f'{name}cached_tokens_sum{{model="qwen"}}': 25 * finished,
    }
    if started is not None:
        lines[f'{name}requests_started_total{{model="qwen"}}'] = started
    return lines


@pytest.mark.parametrize("started", [(12.0, 32.0), (None, None)])
def test_dynamos_frontend_counts_arrivals_or_they_are_conserved(started: tuple[float | None, float | None]) -> None:
    found = between("dynamo", dynamo(started[0], 10, 2, 0.25), dynamo(started[1], 20, 12, 0.25))
    histogram = Histogram((128.0,), (10, 0))
    expected = TrafficSample(
        0, 2_000, 20, 10, 0, 12, isl_tokens=100.0, kv_hit_rate=0.25, ttft_ms=250.0, isl_histogram=histogram
    )
    assert found == {"qwen": expected}


def test_the_router_of_vllm_counts_only_the_requests_at_registered_workers() -> None:
    def lines(arrived: int, here: int, gone: int) -> dict[str, float]:
        return {
            'vllm:num_incoming_requests_total{model="meta/llama"}': arrived,
            'vllm:num_prefill_requests{server="http://10.0.0.7:8000"}': here,
            'vllm:num_decoding_requests{server="http://10.0.0.7:8000"}': here,
            'vllm:num_decoding_requests{server="http://10.0.0.99:8000"}': gone,
            'vllm:input_tokens_total{server="http://10.0.0.7:8000",model="meta/llama"}': arrived * 64,
        }

    found = between("vllm-router", lines(10, 1, 500), lines(30, 3, 500))
    # 20 arrived, and 4 more are there: 16 finished.
    assert found == {"llama": TrafficSample(0, 2_000, 20, 16, 0, 6, isl_tokens=20 * 64 / 16)}


def test_the_later_router_of_vllm_tells_no_model() -> None:
    def lines(requests: int, here: int) -> dict[str, float]:
        return {
            'vllm_router_requests_total{route="/v1/completions"}': requests,
            'vllm_router_running_requests{worker="http://10.0.0.8:8000"}': here,
            'vllm_router_running_requests{worker="http://10.0.0.99:8000"}': 50,
        }

    found = between("vllm-router", lines(5, 2), lines(12, 3), default="qwen")
    assert found == {"qwen": TrafficSample(0, 2_000, 7, 6, 0, 3)}


def test_sglangs_router_and_litellm() -> None:
    def sglang(requests: int) -> dict[str, float]:
        labels = '{router_type="http",model="qwen",endpoint="chat"}'
        return {
            f"smg_router_requests_total{labels}": requests,
            f"smg_router_request_duration_seconds_count{labels}": requests - 2,
            'smg_worker_requests_active{worker="http://10.0.0.8:8000"}': 2,
        }

    assert between("sglang-router", sglang(5), sglang(9)) == {"qwen": TrafficSample(0, 2_000, 4, 4, 0, 2)}

    def litellm(requests: int) -> dict[str, float]:
        labels = '{requested_model="qwen",team="a"}'
        return {
            f"litellm_proxy_total_requests_metric_total{labels}": requests,
            f"litellm_request_total_latency_metric_count{labels}": requests - 1,
            f"litellm_input_tokens_metric_total{labels}": requests * 30,
            f"litellm_llm_api_time_to_first_token_metric_sum{labels}": requests * 0.5,
            f"litellm_llm_api_time_to_first_token_metric_count{labels}": requests,
        }

    assert between("litellm", litellm(5), litellm(9)) == {
        "qwen": TrafficSample(0, 2_000, 4, 4, isl_tokens=30.0, ttft_ms=500.0)
    }


LITELLM_IDLE = b"""# HELP litellm_proxy_total_requests_metric_total Total number of requests made to the proxy server
# TYPE litellm_proxy_total_requests_metric_total counter
# HELP litellm_request_total_latency_metric Total latency (seconds) for a request to LiteLLM
# TYPE litellm_request_total_latency_metric histogram
# TYPE litellm_input_tokens_metric_total counter
"""


def litellm(requests: int, name: str = "qwen") -> bytes:
    labels = f'{{requested_model="{name}"}}'
    lines = {
        f"litellm_proxy_total_requests_metric_total{labels}": requests,
        f"litellm_request_total_latency_metric_count{labels}": requests,
        f"litellm_input_tokens_metric_total{labels}": requests * 30,
    }
    return LITELLM_IDLE + page(lines)


def test_the_first_requests_of_a_router_count() -> None:
    """They wake a model that was scaled to zero."""
    read = reader("litellm")
    assert read.read(LITELLM_IDLE, 1_000) == {}
    assert read.read(litellm(1), 2_000) == {"qwen": TrafficSample(0, 1_000, 1, 1, isl_tokens=30.0)}
    assert read.read(litellm(1), 3_000)["qwen"].arrivals == 0


def test_the_first_requests_of_another_model_count() -> None:
    read = reader("litellm")
    read.read(litellm(1_000), 1_000)
    found = read.read(litellm(1_000) + litellm(2, "llama-lora"), 2_000)
    assert {model: sample.arrivals for model, sample in found.items()} == {"llama": 2, "qwen": 0}


def test_the_first_requests_after_a_restart_count() -> None:
    read = reader("litellm")
    read.read(litellm(1_000), 1_000)
    assert read.read(LITELLM_IDLE, 2_000) == {}
    assert read.read(litellm(1), 3_000)["qwen"].arrivals == 1
    read.read(litellm(1_000) + litellm(7, "llama-lora"), 4_000)
    assert read.read(litellm(3), 5_000) == {}, "started again"
    found = read.read(litellm(4) + litellm(2, "llama-lora"), 6_000)
    assert {model: sample.arrivals for model, sample in found.items()} == {"llama": 2, "qwen": 1}


def test_the_past_of_a_router_that_did_not_declare_its_metrics_does_not_count() -> None:
    read = reader("litellm")
    read.read(page({'litellm_input_tokens_metric_total{requested_model="qwen"}': 30_000}), 1_000)
    found = read.read(litellm(1_000), 2_000)
    assert found == {}
    assert read.read(litellm(1_001), 3_000)["qwen"].arrivals == 1


def test_a_series_that_is_missing_for_a_while_counts_what_it_missed() -> None:
    read = reader("litellm")
    read.read(litellm(1_000) + litellm(500, "llama-lora"), 1_000)
    read.read(litellm(1_001), 2_000)
    found = read.read(litellm(1_002) + litellm(503, "llama-lora"), 3_000)
    assert {model: sample.arrivals for model, sample in found.items()} == {"llama": 3, "qwen": 1}


def test_several_names_may_be_one_model_and_unknown_names_are_ignored() -> None:
    def lines(each: int) -> dict[str, float]:
        return {f'litellm_proxy_total_requests_metric_total{{requested_model="{name}"}}': each for name in names}

    names = ("meta/llama", "llama-lora", "whatever a client wrote")
    found = between("litellm", lines(1), lines(4))
    assert {model: sample.arrivals for model, sample in found.items()} == {"llama": 6}


def test_series_without_a_model_are_of_the_named_one() -> None:
    lines = 'sgl_router_requests_total{route="/generate"}'
    found = between("sglang-router", {lines: 3}, {lines: 8}, default="qwen")
    assert found["qwen"].arrivals == 5
    assert between("sglang-router", {lines: 3}, {lines: 8}) == {}


def test_a_counter_reset_reports_nothing_and_the_next_interval_counts() -> None:
    read = reader("dynamo")
    read.read(page(dynamo(100, 100, 0, 0.1)), 1_000)
    assert read.read(page(dynamo(5, 5, 0, 0.1)), 2_000) == {}
    assert read.read(page(dynamo(9, 9, 0, 0.1)), 3_000)["qwen"].arrivals == 4


def started(started_s: float, requests: int, name: str = "qwen") -> bytes:
    return page({"process_start_time_seconds": started_s}) + litellm(requests, name)


def test_a_page_of_another_process_is_no_traffic() -> None:
    """It is of a router that was started again and has served more since, or of the next replica of a Service."""
    read = reader("litellm")
    pages = [(1.7e9, 1_000), (1.7e9 + 0.2, 1_003), (1.8e9, 50_000), (1.8e9, 50_002), (1.7e9, 60_000)]
    found = [read.read(started(*one), 1_000 * number) for number, one in enumerate(pages, start=1)]
    arrivals = [traffic["qwen"].arrivals if traffic else None for traffic in found]
    assert arrivals == [None, 3, None, 2, None]
    assert read.warnings == {"process_changed": 2}


def test_a_model_of_the_process_before_counts_anew() -> None:
    read = reader("litellm")
    read.read(started(1.7e9, 1_000) + litellm(500, "llama-lora"), 1_000)
    assert read.read(started(1.8e9, 2_000), 2_000) == {}
    found = read.read(started(1.8e9, 2_001) + litellm(2, "llama-lora"), 3_000)
    assert {model: sample.arrivals for model, sample in found.items()} == {"llama": 2, "qwen": 1}


def test_an_idle_router_reports_zero_and_a_page_without_its_metrics_nothing() -> None:
    read = reader("dynamo")
    read.read(page(dynamo(9, 9, 0, 0.1)), 1_000)
    sample = read.read(page(dynamo(9, 9, 0, 0.1)), 2_000)["qwen"]
    assert (sample.arrivals, sample.completed, sample.in_flight, sample.ttft_ms) == (0, 0, 0, None)
    for other in (b"", b"<html>\n", b'other_metric{model="qwen"} 3\n', b"# HELP x\n", page(dynamo(9, 9, 0, 0.1))[:-1]):
        with pytest.raises(NotAnExposition):
            read.read(other, 3_000)


def test_sums_beyond_the_largest_float_are_impossible() -> None:
    read = reader("vllm-router", "qwen")
    at_worker = 'vllm_router_running_requests{worker="http://10.0.0.8:8000",replica="%d"}'
    for now_ms, value in ((1_000, 0.0), (2_000, 1e308)):
        lines = {f'vllm_router_requests_total{{route="{number}"}}': value for number in range(2)}
        found = read.read(page(lines | {at_worker % number: 1e308 for number in range(2)}), now_ms)
    assert found == {}
    assert {"impossible_in_flight_requests", "impossible_arrived_requests"} <= read.warnings.keys()


def test_after_an_outage_of_over_an_hour_counting_begins_anew() -> None:
    read = reader("dynamo")
    read.read(page(dynamo(9, 9, 0, 0.1)), 1_000)
    assert read.read(page(dynamo(900, 900, 0, 0.1)), 3_700_000) == {}
    assert read.read(page(dynamo(901, 901, 0, 0.1)), 3_701_000)["qwen"].arrivals == 1


def test_any_page_gives_reports_that_agents_accept() -> None:
    noise = random.Random(11)
    subjects = Subjects("r")
    codec = Codec(subjects, 262_144)
    good = page(dynamo(10, 10, 2, 0.25))
    for _ in range(300):
        read = reader("dynamo")
        for now_ms in (1_000, 2_000, 3_000):
            damaged = bytearray(good)
            for _ in range(noise.randrange(12)):
                damaged[noise.randrange(len(damaged))] = noise.choice(b'0123456789.eE-+"{}\n,= ')
            with suppress(NotAnExposition):
                for model, sample in read.read(bytes(damaged) + b"\n", now_ms).items():
                    event = codec.decode(subjects.traffic(model, "f"), encode(TrafficReport(model, "f", 1, sample)))
                    assert type(event).__name__ == "TrafficReported", event
