"""Names of the metrics of routers and gateways, over their versions.

Quantities: ``arrived_requests``, ``finished_requests``, ``queued_requests`` (held, because no worker can take them),
``in_flight_requests`` (at workers), the tokens of ``looked_up_tokens`` and ``cached_tokens``, and the distributions
``ttft_ms``, ``itl_ms``, ``isl_tokens`` and ``osl_tokens``.
"""

from typing import Final

from msgspec import Struct

from loadline.engine_metrics.tables import MetricTable


class RouterTable(Struct, frozen=True, kw_only=True):
    """Metrics of one router.

    Attributes:
        traffic: Its traffic, in groups by model.
        workers: Its requests in flight, in groups by worker, for a router that does not tell them by model.
    """

    traffic: MetricTable
    workers: MetricTable | None = None


def _epp(name: str, suffix: str = "") -> tuple[str, ...]:
    """Return the names of a request metric, newest first; versions before 0.9 have no word ``request`` in some."""
    former = name.removeprefix("request_") if name.endswith("_tokens") else name
    return f"llm_d_epp_{name}{suffix}", f"inference_objective_{former}{suffix}", f"inference_model_{former}{suffix}"


LLM_D: Final = RouterTable(
    traffic=MetricTable(
        prefix="llm_d_epp_",
        group_labels=("model_name",),
        gauges={
            "in_flight_requests": (
                (
                    "llm_d_epp_request_running",
                    "inference_objective_running_requests",
                    "inference_model_running_requests",
                ),
            ),
            "queued_requests": (("llm_d_epp_flow_control_queue_size", "inference_extension_flow_control_queue_size"),),
        },
        counters={
            "arrived_requests": (_epp("request_total"),),
            "finished_requests": (_epp("request_duration_seconds", "_count"),),
            "looked_up_tokens": (_epp("request_input_tokens", "_sum"),),
            "cached_tokens": (("llm_d_epp_request_cached_tokens_sum",),),
        },
        histograms={
            "ttft_ms": _epp("request_ttft_seconds"),
            "itl_ms": (*_epp("request_streaming_itl_seconds"), "llm_d_epp_request_streaming_tpot_seconds"),
            "isl_tokens": _epp("request_input_tokens"),
            "osl_tokens": _epp("request_output_tokens"),
        },
    )
)

DYNAMO: Final = RouterTable(
    traffic=MetricTable(
        prefix="dynamo_frontend_",
        group_labels=("model",),
        gauges={
            "in_flight_requests": (("dynamo_frontend_active_requests", "dynamo_frontend_inflight_requests"),),
        },
        counters={
            # Before 1.6 only finished requests are counted, and arrivals are those plus the change of the active ones.
            "arrived_requests": (("dynamo_frontend_requests_started_total",),),
            "finished_requests": (("dynamo_frontend_requests_total",),),
            "looked_up_tokens": (("dynamo_frontend_input_sequence_tokens_sum",),),
            "cached_tokens": (("dynamo_frontend_cached_tokens_sum",),),
        },
        histograms={
            "ttft_ms": ("dynamo_frontend_time_to_first_token_seconds",),
            "itl_ms": ("dynamo_frontend_inter_token_latency_seconds",),
            "isl_tokens": ("dynamo_frontend_input_sequence_tokens",),
            "osl_tokens": ("dynamo_frontend_output_sequence_tokens",),
        },
    )
)

VLLM_ROUTER: Final = RouterTable(
    # The router of the production stack, and the later one in Rust, which tells no model. The first writes gauges of
    # averages too, over windows of its own: not used.
    traffic=MetricTable(
        prefix="vllm:num_incoming_requests",
        group_labels=("model",),
        counters={
            "arrived_requests": (("vllm:num_incoming_requests_total", "vllm_router_requests_total"),),
            "finished_requests": (("vllm_router_request_duration_seconds_count",),),
            "prompt_tokens": (("vllm:input_tokens_total",),),
            "generated_tokens": (("vllm:output_tokens_total",),),
        },
    ),
    workers=MetricTable(
        prefix="vllm:num_prefill_requests",
        group_labels=("server", "worker"),
        gauges={
            "in_flight_requests": (
                ("vllm:num_prefill_requests", "vllm_router_running_requests"),
                ("vllm:num_decoding_requests",),
            ),
        },
    ),
)

SGLANG_ROUTER: Final = RouterTable(
    traffic=MetricTable(
        prefix="smg_router_",
        group_labels=("model", "model_id"),
        counters={
            "arrived_requests": (("smg_router_requests_total", "sgl_router_requests_total"),),
            "finished_requests": (
                ("smg_router_request_duration_seconds_count", "sgl_router_request_duration_seconds_count"),
            ),
        },
        # With workers behind gRPC only.
        histograms={"ttft_ms": ("smg_router_ttft_seconds",), "itl_ms": ("smg_router_tpot_seconds",)},
    ),
    workers=MetricTable(
        prefix="smg_worker_",
        group_labels=("worker", "worker_id"),
        gauges={"in_flight_requests": (("smg_worker_requests_active", "sgl_router_running_requests"),)},
    ),
)

LITELLM: Final = RouterTable(
    traffic=MetricTable(
        prefix="litellm_",
        group_labels=("requested_model", "model_group", "model"),
        counters={
            "arrived_requests": (("litellm_proxy_total_requests_metric_total", "litellm_proxy_total_requests_metric"),),
            "finished_requests": (("litellm_request_total_latency_metric_count",),),
            "prompt_tokens": (("litellm_input_tokens_metric_total", "litellm_input_tokens_metric"),),
            "generated_tokens": (("litellm_output_tokens_metric_total", "litellm_output_tokens_metric"),),
        },
        histograms={"ttft_ms": ("litellm_llm_api_time_to_first_token_metric",)},
    )
)

ROUTERS: Final = {
    "llm-d": LLM_D,
    "dynamo": DYNAMO,
    "vllm-router": VLLM_ROUTER,
    "sglang-router": SGLANG_ROUTER,
    "litellm": LITELLM,
}
