"""Warnings on autoscalers that would ignore a difference of one replica."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadline.cli.main import main
from loadline.config import parse
from loadline.config.autoscalers import read_autoscalers, tolerance_warnings
from loadline.errors import ConfigError

CONFIG = """
[[models]]
name = "llama"
planner = "static"
[[models.pools]]
name = "decode"
role = "decode"
replicas_max = {most}
[[models.pools]]
name = "prefill"
role = "prefill"
replicas_max = 40
"""
EXACT = {"scaleUp": {"tolerance": "0"}, "scaleDown": {"tolerance": "0"}}


def hpa(behavior: object, name: str = "llama-decode", **metadata: Any) -> dict[str, Any]:
    labels = {"model": "llama", "pool": "decode"}
    metric = {"external": {"metric": {"name": "loadline_desired_replicas", "selector": {"matchLabels": labels}}}}
    return {
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"namespace": "serving", "name": name, **metadata},
        "spec": {"metrics": [{"type": "Resource"}, metric], "behavior": behavior},
    }


def scaled_object(behavior: object) -> dict[str, Any]:
    metadata = {"scalerAddress": "x:1", "model": "llama", "pool": "decode"}
    advanced = {"horizontalPodAutoscalerConfig": {"behavior": behavior}}
    return {
        "kind": "ScaledObject",
        "metadata": {"namespace": "serving", "name": "llama-decode"},
        "spec": {"triggers": [{"type": "external-push", "metadata": metadata}], "advanced": advanced},
    }


def created_by_keda(behavior: object) -> dict[str, Any]:
    """Return the HPA of the ScaledObject: its metric names the object, not the pool."""
    made = hpa(behavior, "keda-hpa-llama-decode", labels={"scaledobject.keda.sh/name": "llama-decode"})
    made["spec"]["metrics"] = [{"external": {"metric": {"name": "s0-loadline-desired-replicas"}}}]
    return made


def warnings(*objects: object, most: int = 10) -> list[str]:
    found = read_autoscalers(json.dumps({"kind": "List", "items": objects}).encode())
    return list(tolerance_warnings(parse(CONFIG.format(most=most), "text"), found))


@pytest.mark.parametrize("make", [hpa, scaled_object])
@pytest.mark.parametrize(
    ("behavior", "missing"),
    [
        (EXACT, None),
        ({"scaleUp": {"tolerance": 0}, "scaleDown": {"tolerance": "0m"}}, None),
        (None, "scaleUp and scaleDown"),
        ({}, "scaleUp and scaleDown"),
        ({**EXACT, "scaleDown": {"stabilizationWindowSeconds": 0}}, "in scaleDown"),
        ({**EXACT, "scaleUp": {"tolerance": "0.05"}}, "in scaleUp"),
        ({**EXACT, "scaleUp": {"tolerance": "none"}}, "in scaleUp"),
    ],
)
def test_both_directions_need_a_tolerance_of_zero(make: Any, behavior: object, missing: str | None) -> None:
    found = warnings(make(behavior))
    if missing is None:
        assert found == []
    else:
        [warning] = found
        assert warning.startswith(f"{make(None)['kind']} serving/llama-decode: ")
        assert "replicas_max of pool decode of model llama is 10" in warning
        assert f'Set tolerance: "0" in {missing.removeprefix("in ")} of its behavior' in warning


def test_nine_replicas_need_no_tolerance() -> None:
    assert warnings(hpa(None), scaled_object(None), most=9) == []
    assert len(warnings(hpa(None), scaled_object(None), most=10)) == 2


def test_pools_without_an_autoscaler_and_autoscalers_of_others_are_no_problem() -> None:
    other = hpa(None)
    other["spec"]["metrics"][1]["external"]["metric"]["selector"]["matchLabels"]["model"] = "another"
    assert warnings(other, {"kind": "Pod", "metadata": {"name": "x"}}) == []


def test_a_tolerance_that_the_api_server_did_not_keep_is_found() -> None:
    assert warnings(scaled_object(EXACT), created_by_keda(EXACT)) == []
    kept = {"scaleUp": {"stabilizationWindowSeconds": 0}}
    [warning] = warnings(scaled_object(EXACT), created_by_keda(kept))
    assert "The API server did not keep it." in warning
    elsewhere = created_by_keda(kept)
    elsewhere["metadata"]["namespace"] = "another"
    assert warnings(scaled_object(EXACT), elsewhere) == []


@pytest.mark.parametrize("data", [b"", b"apiVersion: v1", b"[]", b'"x"', b"{}", b'{"kind": 1}', b"[" * 9_999, b"\xff"])
def test_what_is_no_object_is_refused_with_the_command(data: bytes) -> None:
    with pytest.raises(ConfigError, match="kubectl get hpa,scaledobjects -A -o json"):
        read_autoscalers(data)


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(
                ["spec", "metrics", "triggers", "metadata", "behavior", "labels", "name", "namespace", "x"]
            ),
            inner,
        )
    ),
)


@given(_values, _values)
def test_any_object_is_judged_without_an_error(metadata: object, spec: object) -> None:
    warnings({"kind": "ScaledObject", "metadata": metadata, "spec": spec})
    warnings({"kind": "HorizontalPodAutoscaler", "metadata": metadata, "spec": spec})


def test_the_command_reads_a_file_or_stdin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, objects = tmp_path / "loadline.toml", tmp_path / "hpa.json"
    config.write_text(CONFIG.format(most=12), "utf-8")
    objects.write_text(json.dumps(hpa(None)), "utf-8")
    assert main(["check", "--config", str(config)]) == 0
    assert "HorizontalPodAutoscaler" not in capsys.readouterr().out
    assert main(["check", "--config", str(config), "--autoscalers", str(objects)]) == 0
    assert "warning: HorizontalPodAutoscaler serving/llama-decode: " in capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(objects.read_bytes())))
    assert main(["check", "--config", str(config), "--autoscalers", "-"]) == 0
    assert "warning: HorizontalPodAutoscaler serving/llama-decode: " in capsys.readouterr().out
    assert main(["check", "--config", str(config), "--autoscalers", str(tmp_path / "none")]) != 0
    assert "--autoscalers: cannot be read: " in capsys.readouterr().err
