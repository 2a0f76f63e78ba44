"""Plots of one simulation: load, latencies, and the workers, queue and cache of each pool."""

from collections.abc import Sequence
from typing import Any

from loadline.report.plots import BLUE, GREEN, INK, ORANGE, RED, canvas, short_numbers, time_axis
from loadline.sim.result import PoolSeries, ScalingAction, SimulationResult, TimeSeries

# More triangles than this hide the line below them.
_MARKERS_MAX = 80
# Latencies above this multiple of their objective get a logarithmic axis; on a linear one the rest would be flat.
_LOG_RATIO = 8.0
STEPS_MAX = 240
"""Maximum number of steps of workers in a panel, which is 400 points wide."""


def load(outcome: SimulationResult) -> str:
    """Plot arriving requests and prompt tokens, and requests queued at the router."""
    lines = outcome.series
    with canvas("load", (1.3, 1.3, 1.1)) as figure:
        unit_s = time_axis(figure.panels[-1], outcome.duration_s)
        at = _in_units(lines, unit_s)
        for panel, values, title in (
            (figure.panels[0], lines.arrivals_per_s, "requests/s"),
            (figure.panels[1], lines.prompt_tokens_per_s, "prompt tokens/s"),
            (figure.panels[2], lines.queued_requests, "requests queued at the router"),
        ):
            panel.fill_between(at, values, step="post", color=BLUE, alpha=0.25, linewidth=0)
            panel.step(at, values, where="post", color=BLUE)
            panel.yaxis.set_major_formatter(short_numbers())
            panel.set_ylim(0.0, max(1.05 * max(values, default=0.0), 1.0))
            panel.set_title(title)
        return figure.svg("Load over time: requests, prompt tokens and queued requests")


def latencies(outcome: SimulationResult) -> str:
    """Plot TTFT and ITL by arrival time, against their objectives."""
    lines = outcome.series
    with canvas("latencies", (1.85, 1.85)) as figure:
        at = _in_units(lines, time_axis(figure.panels[-1], outcome.duration_s))
        _latency(figure.panels[0], "TTFT", at, (lines.ttft_p50_ms, lines.ttft_p95_ms), outcome.ttft_objective_ms)
        _latency(figure.panels[1], "ITL", at, (lines.itl_p50_ms, lines.itl_p95_ms), outcome.itl_objective_ms)
        return figure.svg("TTFT and ITL over time, median and 95th percentile, against the objectives")


def workers(outcome: SimulationResult, pool: PoolSeries) -> str:
    """Plot the desired, ready, starting and draining workers of a pool, and the decisions that changed their number."""
    with canvas(f"workers {pool.pool}", (2.5,)) as figure:
        [panel] = figure.panels
        unit_s = time_axis(panel, outcome.duration_s)
        at = _in_units(outcome.series, unit_s)
        draw_workers(panel, at, pool)
        actions = [action for action in outcome.actions if action.pool == pool.pool]
        flaps = [action for action in actions if action.flap]
        if len(actions) <= _MARKERS_MAX:
            _mark(panel, [action for action in actions if not action.flap], unit_s, INK, "decision")
            _mark(panel, flaps, unit_s, RED, "flap")
        elif flaps:
            panel.plot(
                [action.at_s / unit_s for action in flaps],
                [0.97] * len(flaps),
                transform=panel.get_xaxis_transform(),
                linestyle="",
                marker="|",
                markersize=5,
                color=RED,
                label="flap",
            )
        panel.set_ylim(0.0, 1.25 * max((*pool.desired, *pool.ready, 1)))
        figure.legend(4)
        return figure.svg(f"Workers of pool {pool.pool} over time")


def draw_workers(panel: Any, at: Sequence[float], pool: PoolSeries, steps_max: int = STEPS_MAX) -> None:
    """Draw the workers of a pool in at most so many steps; starting and draining ones are stacked on the ready ones."""
    counts = pool.ready, pool.starting, pool.draining, pool.desired
    at, ready, starting, draining, desired = _changes(steps_max, at, *counts)
    upper = [one + other for one, other in zip(ready, starting, strict=True)]
    top = [one + other for one, other in zip(upper, draining, strict=True)]
    panel.fill_between(at, ready, step="post", color=GREEN, alpha=0.25, linewidth=0, label="ready")
    panel.fill_between(at, ready, upper, step="post", color=BLUE, alpha=0.45, linewidth=0, label="starting")
    panel.fill_between(at, upper, top, step="post", color=ORANGE, alpha=0.45, linewidth=0, label="draining")
    panel.step(at, ready, where="post", color=GREEN)
    panel.step(at, desired, where="post", color=INK, linestyle=":", label="desired")
    panel.yaxis.get_major_locator().set_params(integer=True)


def _changes(steps_max: int, at: Sequence[float], *columns: Sequence[int]) -> list[list[Any]]:
    """Return the times at which any value changes, and the values: at most so many steps, and the ends."""
    rows = list(zip(at, *columns, strict=True))
    least = (rows[-1][0] - rows[0][0]) / steps_max
    kept = [rows[0]]
    for row in rows[1:]:
        if row[1:] == kept[-1][1:]:
            continue
        if row[0] - kept[-1][0] < least:  # closer than a panel can show: the newest counts
            kept[-1] = (kept[-1][0], *row[1:])
        else:
            kept.append(row)
    kept.append(rows[-1])
    return [list(column) for column in zip(*kept, strict=True)]


def occupancy(outcome: SimulationResult, pool: PoolSeries) -> str:
    """Plot waiting and running requests of a pool and its KV usage."""
    with canvas(f"occupancy {pool.pool}", (1.4, 1.1)) as figure:
        requests, cache = figure.panels
        at = _in_units(outcome.series, time_axis(cache, outcome.duration_s))
        requests.step(at, pool.running_requests, where="post", color=GREEN, label="running")
        requests.step(at, pool.waiting_requests, where="post", color=ORANGE, label="waiting")
        requests.set_ylim(0.0, 1.3 * max((*pool.running_requests, *pool.waiting_requests, 1)))
        requests.set_title("requests at the workers")
        _legend(requests, 2)
        cache.fill_between(at, _percent(pool), step="post", color=BLUE, alpha=0.25, linewidth=0)
        cache.step(at, _percent(pool), where="post", color=BLUE)
        cache.set_ylim(0.0, 105.0)
        cache.set_title("KV cache in use, %")
        return figure.svg(f"Queue, running requests and KV usage of pool {pool.pool} over time")


def _latency(
    panel: Any, name: str, at: Sequence[float], lines: tuple[Sequence[float | None], ...], objective_ms: float
) -> None:
    p50, p95 = lines
    panel.plot(at, _floats(p95), color=ORANGE, label="p95")
    panel.plot(at, _floats(p50), color=BLUE, label="p50")
    panel.axhline(objective_ms, color=RED, linestyle="--", label=f"objective, {objective_ms:g} ms")
    highest = max((value for value in p95 if value is not None), default=0.0)
    if highest > _LOG_RATIO * objective_ms:
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(short_numbers())
    else:
        panel.set_ylim(0.0, 1.1 * max(highest, objective_ms))
    panel.set_title(f"{name}, ms")
    _legend(panel, 3)


def _mark(panel: Any, actions: Sequence[ScalingAction], unit_s: float, colour: str, label: str) -> None:
    """Mark each decision with a triangle at its new count, pointing up or down."""
    for marker, chosen in (
        ("^", [action for action in actions if action.after > action.before]),
        ("v", [action for action in actions if action.after < action.before]),
    ):
        if chosen:
            at = [action.at_s / unit_s for action in chosen]
            after = [action.after for action in chosen]
            name = f"{label}, scale {'up' if marker == '^' else 'down'}"
            panel.plot(at, after, linestyle="", marker=marker, markersize=4, color=colour, label=name, clip_on=False)


def _legend(panel: Any, columns: int) -> None:
    panel.legend(
        loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=columns, handlelength=1.4, columnspacing=1.0, borderpad=0.1
    )


def _in_units(lines: TimeSeries, unit_s: float) -> list[float]:
    return [at_s / unit_s for at_s in lines.at_s]


def _floats(values: Sequence[float | None]) -> list[float]:
    """Return the values with NaN for None, which plots as a gap."""
    return [float("nan") if value is None else value for value in values]


def _percent(pool: PoolSeries) -> list[float]:
    return [100.0 * ratio for ratio in pool.kv_usage_ratio]
