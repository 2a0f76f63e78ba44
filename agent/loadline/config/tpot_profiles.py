"""Times per output token from a profile: JSON with a list ``results`` of points.

A point has ``batch_size``, ``tokens_per_request`` (or ``tokens_num``, the sum over the batch) and ``p50``, the median
time in ms. Other keys are ignored.
"""

from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from loadline.core.engines.tpot import POINTS_MAX, TpotSweep
from loadline.errors import DataError
from loadline.toml.regular_file import open_regular, os_error_text

BYTES_MAX: Final = 64_000_000
"""Maximum size of a file, in which each point may include its raw measurements."""
_REMEDY: Final = "Give the path of a profile of times per output token"
_Number = Annotated[float, Meta(gt=0, le=1e9)]


class _Point(Struct, frozen=True):
    batch_size: _Number
    p50: _Number
    tokens_per_request: _Number | None = None
    tokens_num: _Number | None = None


class _Profile(Struct, frozen=True):
    results: Annotated[list[_Point], Meta(min_length=1, max_length=POINTS_MAX)]


def read_tpot(path: Path) -> TpotSweep:
    """Read the points of a file.

    Raises:
        DataError: It cannot be read, or its values are impossible.
    """
    try:
        with open_regular(path) as file:
            data = file.read(BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {os_error_text(error)}. {_REMEDY}.") from error
    if len(data) > BYTES_MAX:
        raise DataError(f"{path}: larger than {BYTES_MAX} bytes. {_REMEDY}, without raw data.")
    try:
        points = msgspec.json.decode(data, type=_Profile).results
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(
            f"{path}: {error}. {_REMEDY}: a list `results` of batch_size, tokens_per_request, p50."
        ) from error
    for place, point in enumerate(points, start=1):
        if (point.tokens_per_request is None) == (point.tokens_num is None):
            raise DataError(f"{path}: point {place} needs either tokens_per_request or tokens_num. {_REMEDY}.")
    try:
        return TpotSweep(
            tuple(point.batch_size for point in points),
            tuple(point.tokens_per_request or (point.tokens_num or 0.0) / point.batch_size for point in points),
            tuple(point.p50 for point in points),
        )
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error
