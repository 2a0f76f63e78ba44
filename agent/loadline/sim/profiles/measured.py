"""Engine times from a measured profile: one file for prefill, one for decode.

Planners derive capacities from the same sweeps (``core.engines.profile``). A simulated engine looks times up far more
often, one batch at a time, and computes chunks of prompts, so the sweeps are read here as piecewise linear functions
on plain floats.
"""

from bisect import bisect_right
from pathlib import Path
from typing import Final

from loadline.core.engines.sweeps import DecodeSweep, PrefillSweep
from loadline.profile_files import read_decode, read_prefill

_CELLS: Final = 200
"""Cells of the KV usage grid; measured points are 0.07 apart, so a cell is far smaller."""
_CELL_USAGE: Final = 1.0 / _CELLS


class MeasuredProfile:
    """Prefill and decode times of one engine, defined for all inputs.

    Args:
        prefill: File of the prefill sweep.
        decode: File of the decode sweep.

    Raises:
        DataError: A file is missing, is not a profile, or holds impossible numbers.
    """

    def __init__(self, prefill: Path, decode: Path) -> None:
        self._isl, self._ttft_ms = _prefill_curve(read_prefill(prefill))
        sweep = read_decode(decode)
        self.max_kv_tokens = sweep.max_kv_tokens
        self._contexts, self._rows = _decode_rows(sweep)

    def prefill_ms(self, tokens: float) -> float:
        """Return the time of a pass over one prompt, in ms: interpolated, and extrapolated beyond the last point."""
        isl, ttft = self._isl, self._ttft_ms
        right = bisect_right(isl, tokens, 1, len(isl) - 1)
        left = right - 1
        slope = (ttft[right] - ttft[left]) / (isl[right] - isl[left])
        return ttft[left] + slope * (tokens - isl[left])

    def itl_ms(self, batch_requests: int, kv_tokens: float) -> float:
        """Return the time of one decode iteration, in ms, by KV usage and mean context (nearest outside the sweep)."""
        contexts, usage = self._contexts, kv_tokens / self.max_kv_tokens
        place = usage * _CELLS if usage < 1.0 else float(_CELLS)
        cell = int(place) if usage < 1.0 else _CELLS - 1
        part, context = place - cell, kv_tokens / batch_requests
        upper = bisect_right(contexts, context)
        if upper == 0 or upper == len(contexts):
            row = self._rows[0 if upper == 0 else -1]
            return row[cell] + (row[cell + 1] - row[cell]) * part
        low, high = contexts[upper - 1], contexts[upper]
        share = (context - low) / (high - low)
        below, above = self._rows[upper - 1], self._rows[upper]
        lower_ms = below[cell] + (below[cell + 1] - below[cell]) * part
        return (1.0 - share) * lower_ms + share * (above[cell] + (above[cell + 1] - above[cell]) * part)


def _prefill_curve(sweep: PrefillSweep) -> tuple[list[float], list[float]]:
    return [0.0, *sweep.isl_tokens], [sweep.pass_overhead_ms(), *sweep.bounded_ttft_ms()]


def _decode_rows(sweep: DecodeSweep) -> tuple[list[float], list[list[float]]]:
    """Return the measured contexts, and for each the ITL on an even grid of KV usage (nearest outside)."""
    rows = sweep.rows()
    return list(rows), [_on_grid([(sweep.kv_usage[one], sweep.itl_ms[one]) for one in row]) for row in rows.values()]


def _on_grid(points: list[tuple[float, float]]) -> list[float]:
    """Interpolate between points of rising KV usage; nearest outside."""
    found, usages = [], [usage for usage, _ in points]
    for cell in range(_CELLS + 1):
        usage = cell * _CELL_USAGE
        right = bisect_right(usages, usage)
        (left_usage, left_ms), (right_usage, right_ms) = points[max(0, right - 1)], points[min(right, len(points) - 1)]
        slope = (right_ms - left_ms) / (right_usage - left_usage) if right_usage > left_usage else 0.0
        found.append(slope * (usage - left_usage) + left_ms)
    return found
