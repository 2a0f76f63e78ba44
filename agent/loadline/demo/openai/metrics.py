"""Metrics of a simulated engine, with the names, types, labels and buckets of vLLM 0.32.

What the simulation does not have, such as multi-modal caches, is exported as 0, as vLLM does where it is not used.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from loadline.core.vocabulary.samples import WorkerSample
from loadline.sim.engine import EngineKnobs

_COUNTERS: Final = {
    "estimated_flops_per_gpu": "Estimated floating point operations",
    "estimated_read_bytes_per_gpu": "Estimated bytes read from memory",
    "estimated_write_bytes_per_gpu": "Estimated bytes written to memory",
    "prefix_cache_queries": "Prompt tokens looked up in the prefix cache",
    "prefix_cache_hits": "Prompt tokens found in the prefix cache",
    "external_prefix_cache_queries": "Tokens looked up in other caches",
    "external_prefix_cache_hits": "Tokens found in other caches",
    "mm_cache_queries": "Items looked up in the multi-modal cache",
    "mm_cache_hits": "Items found in the multi-modal cache",
    "num_preemptions": "Preemptions",
    "prompt_tokens": "Prompt tokens",
    "prompt_tokens_cached": "Prompt tokens found in a cache",
    "generation_tokens": "Generated tokens",
}
_LABELLED: Final = {
    "prompt_tokens_by_source": ("source", ("local_compute", "local_cache_hit", "external_kv_transfer")),
    "prompt_tokens_cached_by_source": ("source", ("device", "host", "p2p", "disk", "external_unspecified")),
    "request_success": ("finished_reason", ("stop", "length", "abort", "error", "repetition")),
    "admission_rejections": ("reason", ("max_num_queued_reqs", "max_num_queued_tokens")),
}
"""Further counters: name -> label with its values."""
_GAUGES: Final = {
    "num_requests_running": "Requests in the batch",
    "num_requests_waiting": "Requests that wait",
    "kv_cache_usage_perc": "KV cache usage, 0 to 1",
}
_STATES: Final = {
    "num_requests_waiting_by_reason": ("reason", ("capacity", "deferred")),
    "engine_sleep_state": ("sleep_state", ("awake", "weights_offloaded", "discard_all")),
}
_TOKENS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000)
_BATCHED_TOKENS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384)
_TTFT_S: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2_560.0),
)
_ITL_S: Final = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_S: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1_920.0, 7_680.0),
)
_HISTOGRAMS: Final[dict[str, tuple[float, ...]]] = {
    "request_prompt_tokens": _TOKENS,
    "request_generation_tokens": _TOKENS,
    "iteration_tokens_total": _BATCHED_TOKENS,
    "request_max_num_generation_tokens": _TOKENS,
    "request_params_n": (1, 2, 5, 10, 20),
    "request_params_max_tokens": _TOKENS,
    "time_to_first_token_seconds": _TTFT_S,
    "inter_token_latency_seconds": _ITL_S,
    "request_time_per_output_token_seconds": _ITL_S,
    "e2e_request_latency_seconds": _REQUEST_S,
    "request_queue_time_seconds": _REQUEST_S,
    "request_inference_time_seconds": _REQUEST_S,
    "request_prefill_time_seconds": _REQUEST_S,
    "request_decode_time_seconds": _REQUEST_S,
    "request_num_preemptions": (1, 2, 3, 4, 5, 10, 20),
    "request_prefill_kv_computed_tokens": _TOKENS,
}


class VllmMetrics:
    """Metric families of one engine.

    Args:
        model: Value of the label ``model_name``.
        knobs: Limits of the engine.
    """

    def __init__(self, model: str, knobs: EngineKnobs) -> None:
        self._registry = CollectorRegistry()
        labels, registry = {"model_name": model, "engine": "0"}, self._registry
        self._counters = {
            name: Counter(f"vllm:{name}", text, labels, registry=registry).labels(**labels)
            for name, text in _COUNTERS.items()
        }
        for name, (label, values) in _LABELLED.items():
            family = Counter(f"vllm:{name}", name, (*labels, label), registry=registry)
            for value in values:
                self._counters[f"{name}:{value}"] = family.labels(**labels, **{label: value})
        self._gauges = {
            name: Gauge(f"vllm:{name}", text, labels, registry=registry).labels(**labels)
            for name, text in _GAUGES.items()
        }
        for name, (label, values) in _STATES.items():
            states = Gauge(f"vllm:{name}", name, (*labels, label), registry=registry)
            for value in values:
                self._gauges[f"{name}:{value}"] = states.labels(**labels, **{label: value})
        self._gauges["engine_sleep_state:awake"].set(1)
        self._histograms = {
            name: Histogram(f"vllm:{name}", name, labels, buckets=bounds, registry=registry).labels(**labels)
            for name, bounds in _HISTOGRAMS.items()
        }
        config = {
            "block_size": str(knobs.block_size_tokens),
            "num_gpu_blocks": str(knobs.kv_blocks_total),
            "enable_prefix_caching": "True",
            "kv_cache_size_tokens": str(knobs.kv_blocks_total * knobs.block_size_tokens),
        }
        info = Gauge(
            "vllm:cache_config_info", "Configuration of the cache", (*config, "engine"), registry=self._registry
        )
        info.labels(**config, engine="0").set(1)

    def count(self, name: str, amount: float = 1.0) -> None:
        """Raise a counter; ``name:value`` for one with a label."""
        self._counters[name].inc(amount)

    def observe(self, name: str, value: float) -> None:
        """Add a value to a histogram."""
        self._histograms[name].observe(value)

    def exposition(self, sample: WorkerSample) -> bytes:
        """Return all metrics as Prometheus text, with the gauges of a load sample."""
        waiting = sample.waiting_requests or 0
        self._gauges["num_requests_running"].set(sample.running_requests or 0)
        self._gauges["num_requests_waiting"].set(waiting)
        self._gauges["num_requests_waiting_by_reason:capacity"].set(waiting)
        self._gauges["kv_cache_usage_perc"].set((sample.kv_blocks_used or 0) / (sample.kv_blocks_total or 1))
        return generate_latest(self._registry)
