"""Life of a sidecar with engines other than vLLM: registered, reported and drained."""

from collections.abc import Callable

import pytest

from loadline.core.vocabulary.events import LoadReported, WorkerDrained
from tests.support.engine_pages import vllm
from tests.support.sidecar_rig import rig, scenario

Series = dict[str, float | str]


def sglang(running: int, waiting: int) -> Series:
    labels = 'dp_rank="0",model_name="tiny"'
    return {
        f"sglang:num_running_reqs{{{labels}}}": running,
        f"sglang:num_queue_reqs{{{labels}}}": waiting,
        f"sglang:token_usage{{{labels}}}": 0.25,
        f"sglang:max_total_num_tokens{{{labels}}}": 64_000,
        f"sglang:page_size{{{labels}}}": 64,
    }


def trtllm(running: int, waiting: int) -> Series:
    return {
        "trtllm_num_requests_running": running,
        "trtllm_num_requests_waiting": waiting,
        "trtllm_kv_cache_utilization": 0.25,
        "trtllm_kv_cache_max_blocks": 1_000,
        "trtllm_kv_cache_tokens_per_block": 64,
    }


def tgi(running: int, waiting: int) -> Series:
    return {"tgi_batch_current_size": running, "tgi_queue_size": waiting}


def llm_d_sim(running: int, waiting: int) -> Series:
    return vllm(running=running, waiting=waiting, usage=0.25)


@pytest.mark.parametrize(
    ("engine", "series", "path", "kv_blocks", "usage"),
    [
        ("sglang", sglang, "/metrics", 1_000, 0.25),
        ("trtllm", trtllm, "/prometheus/metrics", 1_000, 0.25),
        ("tgi", tgi, "/metrics", None, None),
        ("llm-d-sim", llm_d_sim, "/metrics", 1_000, 0.25),
    ],
)
def test_an_engine_is_registered_reported_and_drained(
    engine: str, series: Callable[[int, int], Series], path: str, kv_blocks: int | None, usage: float | None
) -> None:
    async def run() -> None:
        async with rig(series(2, 1), path, engine=engine, model="tiny") as made:
            record = await made.state_is("ready")
            assert (record.model, record.kv_blocks_total) == ("tiny", kv_blocks)
            await made.until(lambda: made.received(LoadReported))
            [sample] = made.received(LoadReported)[-1].samples
            assert (sample.running_requests, sample.waiting_requests, sample.kv_usage_ratio) == (2, 1, usage)
            assert (await made.drain(record.incarnation)).accepted
            await made.state_is("draining")
            await made.answers(3)
            assert not made.received(WorkerDrained), "it has requests"
            made.engine.body = series(0, 0)
            await made.until(lambda: made.received(WorkerDrained))
            await made.state_is(None)

    scenario(run)
