"""Plots of measured engines: latency against throughput per GPU, as Dynamo's profiler draws them."""

import io
from collections.abc import Mapping
from typing import Any, Final

from loadline.core.engines.sweeps import DecodeSweep, PrefillSweep

_SIZE_IN: Final = (8.0, 5.0)
_DPI: Final = 100


def prefill_plot(sweeps: Mapping[str, PrefillSweep], ttft_ms: float) -> bytes:
    """Return a PNG of the TTFT over prompt lengths against the throughput; one line per engine."""
    figure, axes = _figure("Prefill: one prompt at a time", "TTFT, ms", ttft_ms)
    for name, sweep in sweeps.items():
        axes.plot(sweep.ttft_ms, sweep.tokens_per_s_per_gpu, marker="o", label=name)
        for isl, x, y in zip(sweep.isl_tokens, sweep.ttft_ms, sweep.tokens_per_s_per_gpu, strict=True):
            axes.annotate(f"{isl:.0f}", (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7)
    axes.set_xscale("log")
    return _png(figure, axes)


def decode_plot(sweeps: Mapping[str, DecodeSweep], itl_ms: float) -> bytes:
    """Return a PNG of the ITL of batches against the throughput; one line per engine and context."""
    figure, axes = _figure("Decode: batches of equal requests", "ITL, ms", itl_ms)
    for name, sweep in sweeps.items():
        for context, places in sweep.rows().items():
            x, y = ([values[place] for place in places] for values in (sweep.itl_ms, sweep.tokens_per_s_per_gpu))
            axes.plot(x, y, marker="o", label=f"{name}, {context:.0f} tokens")
    return _png(figure, axes)


def _figure(title: str, latency: str, objective_ms: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra whose import takes half a second

    figure = Figure(figsize=_SIZE_IN, layout="constrained")
    axes = figure.subplots()
    axes.set_title(title)
    axes.set_xlabel(latency)
    axes.set_ylabel("tokens per second and GPU")
    axes.axvline(objective_ms, linestyle="--", color="gray", label="objective")
    axes.grid(visible=True, alpha=0.3)
    return figure, axes


def _png(figure: Any, axes: Any) -> bytes:
    axes.legend(fontsize=8, loc="upper left")  # "best" warns where it takes long
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI)
    return buffer.getvalue()
