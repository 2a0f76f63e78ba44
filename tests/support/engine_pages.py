"""Pages of metrics as engines write them."""

from pathlib import Path
from typing import Final

from msgspec.structs import replace

from loadline.core.vocabulary.events import LoadReported, TrafficReported
from loadline.engine_metrics.engine_reading import EngineReading
from loadline.wire.codec import Codec, encode
from loadline.wire.messages import LoadReport, TrafficReport
from loadline.wire.subjects import Subjects

_SUBJECTS: Final = Subjects("loadline")
_CODEC: Final = Codec(_SUBJECTS, 1_048_576)
RECORDED_VLLM = (Path(__file__).parents[1] / "data/engines/vllm-0.32.prom").read_bytes()


def page(series: dict[str, float | str]) -> bytes:
    """Return a page with these lines: name and labels, value."""
    lines = ["# HELP some_metric Text with {braces} and 1 number", "# TYPE some_metric gauge", "some_metric 1.0"]
    return "\n".join([*lines, *(f"{name} {value}" for name, value in series.items()), ""]).encode()


def vllm(
    *,
    running: float = 0,
    waiting: float = 0,
    usage: float = 0.0,
    finished: float = 0,
    prompts: tuple[float, float] = (0, 0),
    ttft_s: float = 0.0,
    itl: tuple[float, float] = (0, 0.0),
    outputs: tuple[float, float] = (0, 0),
    rank: int = 0,
    blocks: str = "1000",
    started_s: float = 1.7e9,
) -> dict[str, float | str]:
    """Return the series of one rank of vLLM. Pairs are the count and the sum of a histogram."""
    labels = f'engine="{rank}",model_name="tiny"'
    return {
        "process_start_time_seconds": started_s,
        f"vllm:num_requests_running{{{labels}}}": running,
        f"vllm:num_requests_waiting{{{labels}}}": waiting,
        f"vllm:kv_cache_usage_perc{{{labels}}}": usage,
        f'vllm:request_success_total{{{labels},finished_reason="stop"}}': finished,
        f'vllm:request_success_total{{{labels},finished_reason="abort"}}': 0.0,
        f"vllm:prompt_tokens_total{{{labels}}}": prompts[1],
        f"vllm:time_to_first_token_seconds_count{{{labels}}}": prompts[0],
        f"vllm:time_to_first_token_seconds_sum{{{labels}}}": ttft_s,
        f"vllm:inter_token_latency_seconds_count{{{labels}}}": itl[0],
        f"vllm:inter_token_latency_seconds_sum{{{labels}}}": itl[1],
        f"vllm:request_generation_tokens_count{{{labels}}}": outputs[0],
        f"vllm:request_generation_tokens_sum{{{labels}}}": outputs[1],
        f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}",{labels}}}': 1.0,
    }


def check_reports(reading: EngineReading, number: int) -> None:
    """Check that agents accept the reports that a sidecar makes of a reading, the ``number``-th of its engine."""
    samples = [replace(sample, sequence=number) for sample in reading.samples()]
    load = LoadReport("m", "p", "w", 1, samples)
    assert isinstance(_CODEC.decode(_SUBJECTS.load("m", "p", "w"), encode(load)), LoadReported)
    traffic = reading.traffic_sample(number)
    if traffic is not None:
        report = encode(TrafficReport("m", "w", 1, traffic))
        assert isinstance(_CODEC.decode(_SUBJECTS.traffic("m", "w"), report), TrafficReported)
