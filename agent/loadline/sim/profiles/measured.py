"""How long an engine takes, from a measured profile: one NPZ file for prefill, one for decode.

The files have the planner's keys. Prefill: ``prefill_isl`` (tokens), ``prefill_ttft`` (ms), ``prefill_thpt_per_gpu``
(tokens/s). Decode: ``x_kv_usage`` (0..1), ``y_context_length`` (tokens), ``z_itl`` (ms), ``z_thpt_per_gpu`` (tokens/s),
``max_kv_tokens``. Axes rise: ``prefill_isl``, and ``x_kv_usage`` among the points of one context. An axis that does not
is refused, not sorted, for the other keys may have been sorted without it.
"""

import os
from bisect import bisect_right
from pathlib import Path
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from loadline.errors import DataError, LoadlineError

BYTES_MAX = 4_000_000  # a profile is a few kB; a file of this size is something else
_PREFILL_KEYS = ("prefill_isl", "prefill_ttft", "prefill_thpt_per_gpu")
_DECODE_KEYS = ("x_kv_usage", "y_context_length", "z_itl", "z_thpt_per_gpu", "max_kv_tokens")
_POINTS_MIN = 2
# 200 cells of KV usage: measured points are 0.07 apart, so a cell is far finer than what is known.
_CELLS = 200

Numbers = NDArray[np.float64]


class MeasuredProfile:
    """Prefill and decode times of one engine. Look-ups are total.

    Args:
        prefill: NPZ file of the prefill sweep.
        decode: NPZ file of the decode sweep.

    Raises:
        DataError: A file is missing, is no profile, or holds numbers that cannot be true.
    """

    def __init__(self, prefill: Path, decode: Path) -> None:
        self._isl, self._ttft_ms = _prefill_curve(prefill, _read(prefill, _PREFILL_KEYS))
        sweep = _read(decode, _DECODE_KEYS)
        self.max_kv_tokens = float(sweep["max_kv_tokens"][0])
        self._contexts, self._rows = _decode_rows(decode, sweep)

    def prefill_ms(self, tokens: float) -> float:
        """Time of a pass over one prompt, in ms: linear between the measured points, and on beyond the last."""
        isl, ttft = self._isl, self._ttft_ms
        right = min(max(bisect_right(isl, tokens), 1), len(isl) - 1)
        left = right - 1
        slope = (ttft[right] - ttft[left]) / (isl[right] - isl[left])
        return ttft[left] + slope * (tokens - isl[left])

    def itl_ms(self, batch_requests: int, kv_tokens: float) -> float:
        """Time of one decode iteration, in ms: by KV usage and mean context; outside what was measured, the nearest."""
        contexts = self._contexts
        context = kv_tokens / batch_requests
        upper = bisect_right(contexts, context)
        if upper == 0 or upper == len(contexts):
            return self._along(min(upper, len(contexts) - 1), kv_tokens)
        low, high = contexts[upper - 1], contexts[upper]
        share = (context - low) / (high - low)
        return (1.0 - share) * self._along(upper - 1, kv_tokens) + share * self._along(upper, kv_tokens)

    def _along(self, row: int, kv_tokens: float) -> float:
        place = min(max(kv_tokens / self.max_kv_tokens, 0.0), 1.0) * _CELLS
        cell = min(int(place), _CELLS - 1)
        values = self._rows[row]
        return values[cell] + (values[cell + 1] - values[cell]) * (place - cell)


def _read(path: Path, keys: tuple[str, ...]) -> dict[str, Numbers]:
    """The named arrays of an NPZ file: not empty, finite and not negative."""
    try:
        with path.open("rb") as file:
            _check_size(path, os.fstat(file.fileno()).st_size)
            with ZipFile(file) as archive:
                _check_size(path, sum(member.file_size for member in archive.infolist()))
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                missing = [key for key in keys if key not in archive]
                arrays = {key: np.asarray(archive[key], dtype=np.float64).reshape(-1) for key in keys if key in archive}
    except LoadlineError:
        raise
    except Exception as error:  # zipfile, zlib and numpy have a dozen ways to say that bytes are broken
        raise DataError(f"{path}: cannot be read as NPZ ({error}). Name a profile written by the profiler.") from error
    if missing:
        raise DataError(f"{path}: key {missing[0]!r} is missing. A profile of this kind has {', '.join(keys)}.")
    for key, values in arrays.items():
        if values.size == 0:
            raise DataError(f"{path}: key {key!r} is empty. Profile the engine again.")
        bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
        if bad.size:
            raise DataError(
                f"{path}: point {bad[0] + 1} of key {key!r} is {values[bad[0]]}: not finite, or negative. "
                "Profile the engine again, or take the point out of all keys."
            )
    return arrays


def _check_size(path: Path, size: int) -> None:
    if size > BYTES_MAX:
        raise DataError(f"{path}: larger than {BYTES_MAX} bytes, so it is no engine profile. Name another file.")


def _same_length(path: Path, sweep: dict[str, Numbers], *keys: str) -> None:
    sizes = {key: sweep[key].size for key in keys}
    if len(set(sizes.values())) > 1 or min(sizes.values()) < _POINTS_MIN:
        found = ", ".join(f"{key!r} has {size}" for key, size in sizes.items())
        raise DataError(
            f"{path}: {found}: they need equally many points, at least {_POINTS_MIN}. Profile the engine again."
        )


def _above_zero(path: Path, sweep: dict[str, Numbers], *keys: str) -> None:
    for key in keys:
        zeros = np.flatnonzero(sweep[key] == 0)
        if zeros.size:
            raise DataError(f"{path}: point {zeros[0] + 1} of key {key!r} is 0. Profile the engine again.")


def _rising(path: Path, key: str, values: Numbers, places: NDArray[np.intp]) -> None:
    falls = np.flatnonzero(np.diff(values) <= 0)
    if falls.size:
        at = falls[0] + 1
        raise DataError(
            f"{path}: point {places[at] + 1} of key {key!r} is {values[at]} after {values[at - 1]}: it must rise. "
            "Sort the points, all keys alike, or profile the engine again."
        )


def _prefill_curve(path: Path, sweep: dict[str, Numbers]) -> tuple[list[float], list[float]]:
    isl, ttft = sweep["prefill_isl"], sweep["prefill_ttft"]
    _same_length(path, sweep, "prefill_isl", "prefill_ttft")
    _above_zero(path, sweep, "prefill_isl", "prefill_ttft")
    _rising(path, "prefill_isl", isl, np.arange(isl.size))
    # A point that is slower than a longer prompt is an outlier of the measurement: the longer prompt's time bounds it.
    monotone = np.minimum.accumulate(ttft[::-1])[::-1]
    # What a pass costs with nothing in it: the first two points' line, which must not cross zero.
    empty = max(monotone[0] - isl[0] * (monotone[1] - monotone[0]) / (isl[1] - isl[0]), 0.0)
    return [0.0, *isl.tolist()], [float(empty), *monotone.tolist()]


def _decode_rows(path: Path, sweep: dict[str, Numbers]) -> tuple[list[float], list[list[float]]]:
    """The contexts that were measured, and for each the ITL along an even grid of KV usage (nearest outside)."""
    usage, context, itl = sweep["x_kv_usage"], sweep["y_context_length"], sweep["z_itl"]
    _same_length(path, sweep, "x_kv_usage", "y_context_length", "z_itl")
    _above_zero(path, sweep, "z_itl", "max_kv_tokens")
    over = np.flatnonzero(usage > 1)
    if over.size:
        raise DataError(
            f"{path}: point {over[0] + 1} of key 'x_kv_usage' is {usage[over[0]]}: more than the whole cache. "
            "Write the share of the cache that is in use, 0 to 1."
        )
    contexts = np.unique(context)
    grid = np.linspace(0.0, 1.0, _CELLS + 1)
    rows = []
    for length in contexts:
        at = np.flatnonzero(context == length)
        _rising(path, "x_kv_usage", usage[at], at)
        rows.append(np.interp(grid, usage[at], itl[at]).tolist())
    return contexts.tolist(), rows
