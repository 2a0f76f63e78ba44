"""Names of the metrics of engines, over their versions.

A quantity is the sum of *terms*. A term has the names of one metric in different versions, of which the first that the
page has counts. Names are those of the lines without the suffix of a histogram.
"""

from functools import cached_property
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

Terms = tuple[tuple[str, ...], ...]


class MetricTable(Struct, frozen=True, kw_only=True, dict=True):
    """Metrics of one program, by quantity.

    Attributes:
        prefix: Start of all of its names, by which its pages are recognised.
        path: Path of its metrics.
        group_labels: Label that divides the series into groups, such as ranks; the first that a series has counts.
        copy_labels: Labels of copies of the same quantity, of which the largest counts.
        gauge_copy_labels: Labels of gauges that have a total beside its parts; the largest counts. Counters may have
            parts only, which are added.
        model_labels: Label that holds the name of the model; the first that a series has counts.
        gauges: Quantities of this moment. Series of a group are added; of those that end with ``_ratio`` the largest
            counts.
        counters: Quantities that only grow until a restart.
        histograms: Distributions. Those whose quantity ends with ``_ms`` are in seconds in the metric.
        binned: Histograms whose bins are wanted, not only the mean.
        settings: Metric and label that holds a number which does not change.
    """

    prefix: str
    path: str = "/metrics"
    group_labels: tuple[str, ...] = ()
    copy_labels: tuple[str, ...] = ()
    gauge_copy_labels: tuple[str, ...] = ()
    model_labels: tuple[str, ...] = ("model_name",)
    gauges: dict[str, Terms] = {}
    counters: dict[str, Terms] = {}
    histograms: dict[str, tuple[str, ...]] = {}
    binned: frozenset[str] = frozenset(("isl_tokens", "osl_tokens"))
    settings: dict[str, tuple[tuple[str, str], ...]] = {}

    @cached_property
    def histogram_counts(self) -> dict[str, Terms]:
        """Lines with the counts of the histograms."""
        return {quantity: (tuple(f"{name}_count" for name in names),) for quantity, names in self.histograms.items()}

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of all lines that are wanted."""
        lines = {name for terms in (*self.gauges.values(), *self.counters.values()) for term in terms for name in term}
        lines |= {metric for places in self.settings.values() for metric, _ in places}
        for quantity, metrics in self.histograms.items():
            suffixes = ("_sum", "_count", "_bucket") if quantity in self.binned else ("_sum", "_count")
            lines |= {metric + suffix for metric in metrics for suffix in suffixes}
        return frozenset(lines)


VLLM: Final = MetricTable(
    prefix="vllm:",
    group_labels=("engine",),
    gauges={
        "running_requests": (("vllm:num_requests_running",),),
        # Version 0 moved preempted requests to the host; they wait to be continued.
        "waiting_requests": (
            ("vllm:num_requests_waiting", "vllm:num_requests_waiting_by_reason"),
            ("vllm:num_requests_swapped",),
        ),
        # "perc" is 0 to 1.
        "kv_usage_ratio": (("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),),
        "prefix_hit_ratio": (("vllm:gpu_prefix_cache_hit_rate",),),
    },
    counters={
        "finished_requests": (("vllm:request_success_total",),),
        "generated_tokens": (("vllm:generation_tokens_total",),),
        # Prompt tokens are counted with the first output token.
        "prompt_tokens": (("vllm:prompt_tokens_total",),),
        "prompts": (("vllm:time_to_first_token_seconds_count",),),
        "looked_up_tokens": (("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),),
        "cached_tokens": (("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),),
    },
    histograms={
        "ttft_ms": ("vllm:time_to_first_token_seconds",),
        "itl_ms": (
            "vllm:inter_token_latency_seconds",
            "vllm:time_per_output_token_seconds",
            "vllm:request_time_per_output_token_seconds",
        ),
        "queue_ms": ("vllm:request_queue_time_seconds", "vllm:time_in_queue_requests"),
        "isl_tokens": ("vllm:request_prompt_tokens",),
        "osl_tokens": ("vllm:request_generation_tokens",),
    },
    settings={
        "block_size_tokens": (("vllm:cache_config_info", "block_size"),),
        "kv_blocks_total": (("vllm:cache_config_info", "num_gpu_blocks"),),
    },
)

SGLANG: Final = MetricTable(
    prefix="sglang:",
    group_labels=("dp_rank",),
    copy_labels=("tp_rank", "pp_rank", "moe_ep_rank"),
    gauge_copy_labels=("priority",),  # with priority scheduling: "" is the total
    gauges={
        # A prefill worker holds what it transfers; it is not empty before.
        "running_requests": (("sglang:num_running_reqs",), ("sglang:num_prefill_inflight_queue_reqs",)),
        "waiting_requests": (
            ("sglang:num_queue_reqs",),
            ("sglang:num_grammar_queue_reqs",),
            ("sglang:num_prefill_bootstrap_queue_reqs", "sglang:num_prefill_prealloc_queue_reqs"),
            ("sglang:num_decode_prealloc_queue_reqs",),
            ("sglang:num_decode_transfer_queue_reqs",),
        ),
        "kv_usage_ratio": (("sglang:token_usage",),),
        "decode_tokens": (("sglang:decode_sum_seq_lens",),),
        "prefix_hit_ratio": (("sglang:cache_hit_rate",),),
        "block_size_tokens": (("sglang:page_size",),),
        "kv_blocks_total": (("sglang:num_pages",),),
        "kv_tokens_total": (("sglang:max_total_num_tokens",),),
    },
    counters={
        # All of these are counted with the end of a request.
        "finished_requests": (("sglang:num_requests_total",),),
        "generated_tokens": (("sglang:generation_tokens_total",),),
        "prompt_tokens": (("sglang:prompt_tokens_total",),),
        "prompts": (("sglang:num_requests_total",),),
        "looked_up_tokens": (("sglang:prompt_tokens_total",),),
        "cached_tokens": (("sglang:cached_tokens_total",),),
    },
    histograms={
        "ttft_ms": ("sglang:time_to_first_token_seconds",),
        "itl_ms": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        "queue_ms": ("sglang:queue_time_seconds",),
        "isl_tokens": ("sglang:prompt_tokens_histogram",),
        "osl_tokens": ("sglang:generation_tokens_histogram",),
    },
    settings={
        "block_size_tokens": (("sglang:cache_config_info", "page_size"),),
        "kv_blocks_total": (("sglang:cache_config_info", "num_pages"),),
    },
)

TRTLLM: Final = MetricTable(
    prefix="trtllm_",
    path="/prometheus/metrics",  # /metrics is JSON
    gauges={
        "running_requests": (("trtllm_num_requests_running",),),
        "waiting_requests": (("trtllm_num_requests_waiting",),),
        "decode_batch_requests": (("trtllm_num_generation_requests",),),
        "kv_usage_ratio": (("trtllm_kv_cache_utilization",),),
        "kv_blocks_used": (("trtllm_kv_cache_used_blocks",),),
        "kv_blocks_total": (("trtllm_kv_cache_max_blocks",),),
        "block_size_tokens": (("trtllm_kv_cache_tokens_per_block",),),
        "max_batch_requests": (("trtllm_max_batch_size_runtime", "trtllm_max_num_active_requests"),),
        "prefix_hit_ratio": (("trtllm_kv_cache_hit_rate",),),
    },
    counters={
        "finished_requests": (("trtllm_request_success_total", "trtllm_num_requests_completed_total"),),
        "generated_tokens": (("trtllm_generation_tokens_total",),),
        "prompt_tokens": (("trtllm_prompt_tokens_total",),),
        "prompts": (("trtllm_request_success_total",),),
        "looked_up_tokens": (("trtllm_prompt_tokens_total",),),
        "cached_tokens": (("trtllm_prompt_cached_tokens_total", "trtllm_prompt_cache_hit_tokens_total"),),
    },
    histograms={
        "ttft_ms": ("trtllm_time_to_first_token_seconds",),
        "itl_ms": ("trtllm_time_per_output_token_seconds",),
        "queue_ms": ("trtllm_request_queue_time_seconds",),
    },
)

TGI: Final = MetricTable(
    prefix="tgi_",
    gauges={
        "running_requests": (("tgi_batch_current_size",),),
        "waiting_requests": (("tgi_queue_size",),),
    },
    counters={"finished_requests": (("tgi_request_success",), ("tgi_request_failure",))},
    histograms={
        "itl_ms": ("tgi_request_mean_time_per_token_duration",),
        "queue_ms": ("tgi_request_queue_duration",),
        "isl_tokens": ("tgi_request_input_length",),
        "osl_tokens": ("tgi_request_generated_tokens",),
    },
)

# The simulator of llm-d has the names of vLLM. Until 0.4 it counted no prefix cache, and had the old name of KV usage.
LLM_D_SIM: Final = replace(VLLM)

ENGINES: Final = {"vllm": VLLM, "sglang": SGLANG, "trtllm": TRTLLM, "tgi": TGI, "llm-d-sim": LLM_D_SIM}


def detect(page: bytes) -> str | None:
    """Return the engine that a page of metrics is of, or None; for a simulator, the engine that it simulates."""
    lines = b"\n" + page
    return next((engine for engine, table in ENGINES.items() if f"\n{table.prefix}".encode() in lines), None)
