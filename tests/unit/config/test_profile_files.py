"""Profiles in a profiler's folder and in JSON. Errors in NPZ files are tested in ``sim/test_engine_profiles``."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadline.errors import DataError
from loadline.profile_files import read_decode, read_prefill

PREFILL = {"prefill_isl": [100, 200], "prefill_ttft": [10.0, 20.5], "prefill_thpt_per_gpu": [9.0, 8]}
DECODE = {
    "x_kv_usage": [0.1, 0.9],
    "y_context_length": [100, 100],
    "z_itl": [10.0, 20.0],
    "z_thpt_per_gpu": [100, 200],
    "max_kv_tokens": 1_000,
}


def write_json(folder: Path, name: str, content: dict[str, Any]) -> Path:
    path = folder / name
    path.write_text(json.dumps(content))
    return path


def write_npz(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {key: np.atleast_1d(value) for key, value in content.items()}
    np.savez(path, **arrays)


def test_json_and_npz_with_the_same_content_are_equivalent(tmp_path: Path) -> None:
    write_npz(tmp_path / "p.npz", PREFILL)
    write_npz(tmp_path / "d.npz", DECODE)
    assert read_prefill(tmp_path / "p.npz") == read_prefill(write_json(tmp_path, "p.json", PREFILL))
    assert read_decode(tmp_path / "d.npz") == read_decode(write_json(tmp_path, "d.json", DECODE))
    assert read_decode(tmp_path / "d.json").max_kv_tokens == 1_000


def test_a_profilers_folder_is_read_and_interpolation_data_has_precedence(tmp_path: Path) -> None:
    write_json(tmp_path, "prefill_raw_data.json", PREFILL)
    write_json(tmp_path, "decode_raw_data.json", DECODE)
    assert read_prefill(tmp_path).isl_tokens == (100, 200)
    assert read_decode(tmp_path).kv_usage == (0.1, 0.9)
    write_npz(tmp_path / "selected_prefill_interpolation" / "raw_data.npz", {**PREFILL, "prefill_isl": [100, 300]})
    assert read_prefill(tmp_path).isl_tokens == (100, 300), "interpolation data has precedence"


def test_other_keys_are_ignored(tmp_path: Path) -> None:
    assert read_prefill(write_json(tmp_path, "p.json", {**PREFILL, "note": "x"})).ttft_ms == (10.0, 20.5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({**DECODE, "z_itl": [1, None]}, r"bad\.json: a point of key 'z_itl' is not a number: null\. Write"),
        ({**DECODE, "z_itl": [1, True]}, r"bad\.json: a point of key 'z_itl' is not a number: true\. Write"),
        ({**DECODE, "z_itl": "much"}, r"bad\.json: key 'z_itl' is not a list\. Write"),
        ({**DECODE, "z_itl": [1] * 100_001}, r"bad\.json: key 'z_itl' has 100001 points, more than 100000\. Keep"),
        ({**DECODE, "z_itl": [10**400, 1]}, r"bad\.json: point 1 of key 'z_itl' is inf: not finite"),
        ({**DECODE, "max_kv_tokens": "many"}, r"bad\.json: key 'max_kv_tokens' is not a number: \"many\"\. Write"),
        ({**DECODE, "max_kv_tokens": []}, r"bad\.json: key 'max_kv_tokens' is empty\. Write one number"),
        ({**DECODE, "z_itl": [1e300, 1]}, r"bad\.json: point 1 of key 'z_itl' is 1e\+300: not finite, or not within"),
        ({**DECODE, "z_itl": [1e-300, 1]}, r"bad\.json: point 1 of key 'z_itl' is 1e-300: below the minimum of 1e-06"),
        ({"z_itl": [1, 2]}, r"bad\.json: key 'x_kv_usage' is missing\. A profile of this kind has x_kv_usage, "),
        (
            {key: [value[0]] if isinstance(value, list) else value for key, value in DECODE.items()},
            r"bad\.json: .* has 1: they need equally many points, at least 2\. Profile the engine again",
        ),
    ],
)
def test_an_error_in_json_content_names_the_file_and_key(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_decode(write_json(tmp_path, "bad.json", content))


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b'{"z_itl": NaN}', b"[" * 100_000, b" " * 4_000_001])
def test_an_error_in_json_syntax_names_the_file(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(text)
    with pytest.raises(DataError, match=r"bad\.json: (cannot be read as JSON|larger than)"):
        read_prefill(path)


def test_an_error_about_a_missing_file_names_it(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"contains none of selected_decode_interpolation/raw_data\.npz, decode_raw_data\.json"
    ):
        read_decode(tmp_path)
    for name in ("no.npz", "no.json"):
        with pytest.raises(DataError, match=rf"{name}: cannot be read: No such file or directory\. Give the path"):
            read_decode(tmp_path / name)


def test_nan_in_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text('{"prefill_isl": [NaN]}')
    with pytest.raises(DataError, match=r"bad\.json: cannot be read as JSON: NaN is not a number\. Give the path"):
        read_prefill(path)


@pytest.mark.parametrize("values", [[1j, 2j], ["a", "b"], [True, False]])
def test_arrays_that_are_not_real_numbers_are_refused(tmp_path: Path, values: list[object]) -> None:
    write_npz(tmp_path / "p.npz", {**PREFILL, "prefill_ttft": values})
    with pytest.raises(DataError, match=r"p\.npz: key 'prefill_ttft' has type [a-z0-9]+, not real numbers\. Profile"):
        read_prefill(tmp_path / "p.npz")


@pytest.mark.parametrize("name", ["p.npz", "p.json"])
def test_a_fifo_is_refused(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match=rf"{name}: cannot be read: it is not a regular file, but a FIFO"):
        read_prefill(tmp_path / name)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(DataError, match=rf"{name}: cannot be read: it is not a regular file, but a FIFO"):
        read_prefill(tmp_path / name)


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(write_json(tmp_path, "p.json", PREFILL))
    assert read_prefill(tmp_path / "link.json") == read_prefill(tmp_path / "p.json")
