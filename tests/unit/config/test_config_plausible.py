"""Warnings of implausible profiles and objectives."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.config_texts import config_error, config_warnings

PREFILL: dict[str, Any] = {
    "prefill_isl": [1_000, 2_000],
    "prefill_ttft": [50.0, 100.0],
    "prefill_thpt_per_gpu": [10_000, 10_000],
}
DECODE: dict[str, Any] = {
    "x_kv_usage": [0.0, 0.1, 0.8],
    "y_context_length": [1_000, 1_000, 1_000],
    "z_itl": [8.0, 10.0, 20.0],
    "z_thpt_per_gpu": [62.5, 500, 2_000],
    "max_kv_tokens": 100_000,
}


def warnings(folder: Path, prefill: dict[str, Any], decode: dict[str, Any], model: str = "") -> list[str]:
    for name, content in (("p", prefill), ("d", decode)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    files = f'prefill_profile = "{folder}/p.json"\ndecode_profile = "{folder}/d.json"'
    pool = f'[[models.pools]]\nname = "a"\nrole = "aggregated"\ngpus_per_worker = 2\n{files}\n'
    return config_warnings(f'[[models]]\nname = "m"\nplanner = "sla"\n{model}\n{pool}', base="")


def times(content: dict[str, Any], key: str, factor: float) -> dict[str, Any]:
    return {**content, key: [value * factor for value in content[key]]}


def test_a_consistent_profile_gives_no_warning(tmp_path: Path) -> None:
    assert warnings(tmp_path, PREFILL, DECODE) == []


@pytest.mark.parametrize(("factor", "unit"), [(1e-3, "seconds"), (1e3, "microseconds")])
def test_times_in_another_unit_are_warned_of(tmp_path: Path, factor: float, unit: str) -> None:
    generous = "objectives.itl_ms = 1e9\nobjectives.ttft_ms = 1e9"
    (warning,) = warnings(tmp_path, times(PREFILL, "prefill_ttft", factor), DECODE, generous)
    assert warning.startswith("models[0].pools[0].prefill_profile: prefill_ttft is ")
    assert f"2 GPUs implies 100 ms: the unit seems to be {unit}. Write milliseconds" in warning
    (warning,) = warnings(tmp_path, PREFILL, times(DECODE, "z_itl", factor), generous)
    assert warning.startswith("models[0].pools[0].decode_profile: z_itl is ")
    assert f"ms: the unit seems to be {unit}. Write milliseconds" in warning


def test_a_throughput_per_node_is_not_another_unit(tmp_path: Path) -> None:
    (warning,) = warnings(tmp_path, PREFILL, times(DECODE, "z_thpt_per_gpu", 0.25))
    assert "workers with 8 GPUs, and the pool has 2 per worker" in warning


def test_a_cache_too_small_for_a_request_is_warned_of(tmp_path: Path) -> None:
    (warning,) = warnings(tmp_path, PREFILL, {**DECODE, "max_kv_tokens": 999})
    assert "decode_profile: max_kv_tokens 999 is below the shortest measured request of 1000 tokens" in warning
    assert warning.endswith("Set it to the number of tokens that the KV cache of a worker holds.")


@pytest.mark.parametrize(("key", "ms", "best"), [("ttft_ms", 11.0, "50 ms"), ("itl_ms", 7.9, "8 ms")])
def test_unreachable_objectives_are_warned_of_with_the_best_value(
    tmp_path: Path, key: str, ms: float, best: str
) -> None:
    (warning,) = warnings(tmp_path, PREFILL, DECODE, f"objectives.{key} = {ms}")
    assert warning.startswith(
        f"models[0].objectives.{key}: no request of pool a can meet {ms:g} ms, so the pool is held"
    )
    assert f"the best latency of its profile is {best}." in warning


def test_the_accepted_values_name_every_predictor() -> None:
    text = '[models.throughput.forecast]\npredictor = "prophecy"'
    assert "one of arima, auto, constant, kalman, prophet, seasonal" in config_error(text).remedy
