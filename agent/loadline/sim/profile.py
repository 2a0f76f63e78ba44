"""How long an engine takes, from a measured profile: one NPZ file for prefill, one for decode.

The files have the planner's keys. Prefill: ``prefill_isl`` (tokens), ``prefill_ttft`` (ms), ``prefill_thpt_per_gpu``
(tokens/s). Decode: ``x_kv_usage`` (0..1), ``y_context_length`` (tokens), ``z_itl`` (ms), ``z_thpt_per_gpu`` (tokens/s),
``max_kv_tokens``.
"""

from bisect import bisect_right
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from loadline.errors import DataError

BYTES_MAX = 4_000_000  # a profile is a few kB; a file of this size is something else
_PREFILL_KEYS = ("prefill_isl", "prefill_ttft", "prefill_thpt_per_gpu")
_DECODE_KEYS = ("x_kv_usage", "y_context_length", "z_itl", "z_thpt_per_gpu", "max_kv_tokens")
# 200 cells of KV usage: measured points are 0.07 apart, so a cell is far finer than what is known.
_CELLS = 200

Numbers = NDArray[np.float64]


class EngineProfile:
    """Prefill and decode times of one engine. Look-ups are total: outside the measured range the nearest is taken.

    Args:
        prefill: NPZ file of the prefill sweep.
        decode: NPZ file of the decode sweep.

    Raises:
        DataError: A file is missing, is no profile, or holds numbers that cannot be true.
    """

    def __init__(self, prefill: Path, decode: Path) -> None:
        sweep = _read(prefill, _PREFILL_KEYS)
        self._isl, self._ttft_ms = _prefill_curve(prefill, sweep)
        sweep = _read(decode, _DECODE_KEYS)
        self.max_kv_tokens = float(sweep["max_kv_tokens"].reshape(-1)[0])
        self._contexts, self._rows = _decode_rows(decode, sweep)

    def prefill_ms(self, tokens: float) -> float:
        """Time of one prefill pass over this many prompt tokens, in ms.

        Linear between the measured points and beyond the last, the first point's time below it.
        """
        isl, ttft = self._isl, self._ttft_ms
        right = min(max(bisect_right(isl, tokens), 1), len(isl) - 1)
        left = right - 1
        slope = (ttft[right] - ttft[left]) / (isl[right] - isl[left])
        return ttft[left] + slope * (max(tokens, isl[0]) - isl[left])

    def itl_ms(self, kv_tokens: float, context_tokens: float) -> float:
        """Time of one decode iteration, in ms.

        Args:
            kv_tokens: KV cache tokens that the batch holds.
            context_tokens: Mean context of a request of the batch.
        """
        contexts = self._contexts
        upper = bisect_right(contexts, context_tokens)
        if upper == 0 or upper == len(contexts):
            return self._along(min(upper, len(contexts) - 1), kv_tokens)
        low, high = contexts[upper - 1], contexts[upper]
        share = (context_tokens - low) / (high - low)
        return (1.0 - share) * self._along(upper - 1, kv_tokens) + share * self._along(upper, kv_tokens)

    def _along(self, row: int, kv_tokens: float) -> float:
        place = min(max(kv_tokens / self.max_kv_tokens, 0.0), 1.0) * _CELLS
        cell = min(int(place), _CELLS - 1)
        values = self._rows[row]
        return values[cell] + (values[cell + 1] - values[cell]) * (place - cell)


def _read(path: Path, keys: tuple[str, ...]) -> dict[str, Numbers]:
    """The named arrays of an NPZ file, finite and not negative."""
    try:
        if path.stat().st_size > BYTES_MAX:
            raise DataError(f"{path}: larger than {BYTES_MAX} bytes, so it is no engine profile. Name another file.")
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            missing = [key for key in keys if key not in archive]
            if missing:
                raise DataError(f"{path}: key {missing[0]!r} is missing. A profile of this kind has {', '.join(keys)}.")
            arrays = {key: np.asarray(archive[key], dtype=np.float64).reshape(-1) for key in keys}
    except (OSError, ValueError, TypeError, EOFError, BadZipFile) as error:
        raise DataError(f"{path}: cannot be read as NPZ ({error}). Name a profile written by the profiler.") from error
    for key, values in arrays.items():
        if values.size == 0 or not np.isfinite(values).all() or (values < 0).any():
            raise DataError(f"{path}: key {key!r} is empty, not finite or negative. Profile the engine again.")
    return arrays


def _prefill_curve(path: Path, sweep: dict[str, Numbers]) -> tuple[list[float], list[float]]:
    isl, ttft = sweep["prefill_isl"], sweep["prefill_ttft"]
    if isl.size != ttft.size or np.unique(isl).size != isl.size or isl.size < 2:  # noqa: PLR2004 - two make a line
        raise DataError(
            f"{path}: keys 'prefill_isl' and 'prefill_ttft' need the same length, at least 2, and no ISL twice. "
            "Profile at least two lengths."
        )
    order = np.argsort(isl)
    # A point that is slower than a longer prompt is an outlier of the measurement: the longer prompt's time bounds it.
    monotone = np.minimum.accumulate(ttft[order][::-1])[::-1]
    return isl[order].tolist(), monotone.tolist()


def _decode_rows(path: Path, sweep: dict[str, Numbers]) -> tuple[list[float], list[list[float]]]:
    """The contexts that were measured, and for each the ITL along an even grid of KV usage (nearest outside)."""
    usage, context, itl = sweep["x_kv_usage"], sweep["y_context_length"], sweep["z_itl"]
    if not usage.size == context.size == itl.size:
        raise DataError(
            f"{path}: keys 'x_kv_usage', 'y_context_length' and 'z_itl' differ in length. Profile the engine again."
        )
    if (itl == 0).any() or sweep["max_kv_tokens"][0] == 0:
        raise DataError(f"{path}: key 'z_itl' or 'max_kv_tokens' holds a zero. Profile the engine again.")
    contexts = np.unique(context)
    grid = np.linspace(0.0, 1.0, _CELLS + 1)
    rows = []
    for length in contexts:
        at = np.flatnonzero(context == length)
        at = at[np.argsort(usage[at], kind="stable")]
        rows.append(np.interp(grid, usage[at], itl[at]).tolist())
    return contexts.tolist(), rows
