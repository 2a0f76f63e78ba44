"""Reading of engine profiles: NPZ files of Dynamo's profiler, or JSON files with the same keys.

A folder with results of a profiler contains ``selected_prefill_interpolation/raw_data.npz`` and
``selected_decode_interpolation/raw_data.npz``, or ``prefill_raw_data.json`` and ``decode_raw_data.json``. The keys are
those of ``core.engines.sweeps`` in both formats.
"""

import json
from io import BytesIO
from pathlib import Path
from typing import Any, Final, TypeVar
from zipfile import ZipFile

import msgspec
import numpy as np

from loadline.core.engines.sweeps import POINTS_MAX, DecodeSweep, PrefillSweep
from loadline.errors import DataError, LoadlineError
from loadline.toml.regular_file import open_regular, os_error_text

BYTES_MAX: Final = 4_000_000
"""Maximum size of a file; a profile has a few kB."""
SELECTED: Final = {
    "prefill": ("selected_prefill_interpolation/raw_data.npz", "prefill_raw_data.json"),
    "decode": ("selected_decode_interpolation/raw_data.npz", "decode_raw_data.json"),
}
"""Files of each sweep in a profiler's results folder, in order of preference."""

_REMEDY: Final = "Give the path of a profile written by the profiler"
_FOLDER_REMEDY: Final = "Give the path of a folder with results of a profiler, or of a file"
_NUMBERS: Final = "uif"
"""Kinds of numpy arrays of real numbers."""
_SHOWN_MAX: Final = 60

Sweep = TypeVar("Sweep", PrefillSweep, DecodeSweep)


def read_prefill(path: Path) -> PrefillSweep:
    """Read the prefill sweep from a file or from a folder with results of a profiler.

    Raises:
        DataError: There is none, or its values are invalid.
    """
    return _read(path, PrefillSweep, "prefill")


def read_decode(path: Path) -> DecodeSweep:
    """Read the decode sweep from a file or from a folder with results of a profiler.

    Raises:
        DataError: There is none, or its values are invalid.
    """
    return _read(path, DecodeSweep, "decode")


def read_sweeps(path: Path) -> list[PrefillSweep | DecodeSweep]:
    """Read all sweeps from a file or from a folder with results of a profiler.

    Raises:
        DataError: There is none, or the values of one are invalid.
    """
    if path.is_dir():
        roles = [role for role, names in SELECTED.items() if any((path / name).is_file() for name in names)]
        if not roles:
            names = ", ".join(name for names in SELECTED.values() for name in names)
            raise DataError(f"{path}: contains none of {names}. {_FOLDER_REMEDY}.")
    else:
        content = _content(path, (*_keys(PrefillSweep), *_keys(DecodeSweep)))
        kinds = (("prefill", PrefillSweep), ("decode", DecodeSweep))
        roles = [role for role, kind in kinds if not content.keys().isdisjoint(_keys(kind))]
        if not roles:
            raise DataError(f"{path}: contains no sweep. {_REMEDY}.")
    return [read_prefill(path) if role == "prefill" else read_decode(path) for role in roles]


def _keys(kind: type[PrefillSweep | DecodeSweep]) -> tuple[str, ...]:
    return tuple(field.encode_name for field in msgspec.structs.fields(kind))


def _read(path: Path, kind: type[Sweep], role: str) -> Sweep:
    file, keys = _selected(path, role) if path.is_dir() else path, _keys(kind)
    content = _content(file, keys)
    missing = [key for key in keys if key not in content]
    if missing:
        raise DataError(f"{file}: key {missing[0]!r} is missing. A profile of this kind has {', '.join(keys)}.")
    if "max_kv_tokens" in keys:
        content["max_kv_tokens"] = _only(file, content["max_kv_tokens"])
    for key in keys:
        _check_key(file, key, content[key])
    try:
        return msgspec.convert({key: content[key] for key in keys}, kind, strict=True)
    except msgspec.ValidationError as error:
        raise DataError(f"{file}: {error}") from error


def _selected(folder: Path, role: str) -> Path:
    for name in SELECTED[role]:
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"{folder}: contains none of {', '.join(SELECTED[role])}. {_FOLDER_REMEDY}.")


def _only(file: Path, values: Any) -> Any:
    """Return a single number, which NPZ stores as an array."""
    if not isinstance(values, list):
        return values
    if len(values) != 1:
        what = "is empty" if not values else f"has {len(values)} values"
        raise DataError(f"{file}: key 'max_kv_tokens' {what}. Write one number, the tokens that the KV cache holds.")
    return values[0]


def _check_key(file: Path, key: str, value: Any) -> None:
    """Check the shape of a key; the sweeps validate the values themselves."""
    if key == "max_kv_tokens":
        points, what = [value], f"key {key!r}"
    elif isinstance(value, list):
        points, what = value, f"a point of key {key!r}"
    else:
        raise DataError(f"{file}: key {key!r} is not a list. Write a list with a number for each point.")
    if len(points) > POINTS_MAX:
        raise DataError(f"{file}: key {key!r} has {len(points)} points, more than {POINTS_MAX}. Keep a few dozen.")
    for point in points:
        if not isinstance(point, float):
            raise DataError(f"{file}: {what} is not a number: {json.dumps(point)[:_SHOWN_MAX]}. Write a number.")


def _content(file: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    try:
        with open_regular(file) as stream:
            data = stream.read(BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read: {os_error_text(error)}. {_REMEDY}.") from error
    _check_size(file, len(data))
    return _json(file, data) if file.suffix == ".json" else _npz(file, data, keys)


def _json(file: Path, data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data, parse_constant=_refuse_constant, parse_int=float)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: cannot be read as JSON: {error}. {_REMEDY}.") from error
    if not isinstance(content, dict):
        raise DataError(f"{file}: cannot be read as JSON: it is not an object. {_REMEDY}.")
    return content


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _npz(file: Path, data: bytes, keys: tuple[str, ...]) -> dict[str, Any]:
    try:
        with ZipFile(BytesIO(data)) as archive:
            _check_size(file, sum(member.file_size for member in archive.infolist()))
        with np.load(BytesIO(data), allow_pickle=False) as arrays:
            return {key: _numbers(file, key, arrays[key]) for key in keys if key in arrays}
    except LoadlineError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise a dozen types for broken bytes
        raise DataError(f"{file}: cannot be read as NPZ: {error}. {_REMEDY}.") from error


def _numbers(file: Path, key: str, array: "np.ndarray[Any, np.dtype[Any]]") -> list[float]:
    if array.dtype.kind not in _NUMBERS:
        raise DataError(f"{file}: key {key!r} has type {array.dtype.name}, not real numbers. Profile the engine again.")
    found: list[float] = array.astype(np.float64).reshape(-1).tolist()
    return found


def _check_size(file: Path, size: int) -> None:
    if size > BYTES_MAX:
        raise DataError(f"{file}: larger than {BYTES_MAX} bytes, so it is not an engine profile. {_REMEDY}.")
