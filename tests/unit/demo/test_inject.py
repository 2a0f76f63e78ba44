import json
import random
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from loadline.core.vocabulary.samples import TrafficSample, WorkerSample
from loadline.demo.inject import SHAPES, shape_value, worker_sample
from tests.support.extremes import Extremes
from tools.inject import parser, sampler, traffic_sampler

EXPECTED = {
    # periods since the start: 0, 0.05, 0.25, 0.5, 0.99, 1, 1.05, 1.5, 3
    "ramp": (0, 0.05, 0.25, 0.5, 0.99, 1, 1, 1, 1),
    "step": (0, 0, 0, 0, 0, 1, 1, 1, 1),
    "spike": (1, 1, 0, 0, 0, 1, 1, 0, 1),
    "sine": (0, 0.0244717, 0.5, 1, 0.000986636, 0, 0.0244717, 1, 0),
}
PERIODS = (0, 0.05, 0.25, 0.5, 0.99, 1, 1.05, 1.5, 3)


def test_every_shape_is_tested() -> None:
    assert EXPECTED.keys() == SHAPES.keys()


@pytest.mark.parametrize("index", range(len(PERIODS)))
@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_is_between_its_bounds(shape: str, index: int) -> None:
    expected = EXPECTED[shape][index]
    assert SHAPES[shape](PERIODS[index]) == pytest.approx(expected, abs=1e-6)
    value = shape_value(shape, PERIODS[index] * 60, 60, low=10, high=-10)
    assert value == pytest.approx(10 - 20 * expected, abs=1e-4)


def test_samples_omit_unset_fields_and_are_bounded() -> None:
    sample = worker_sample(kv_usage_ratio=0.5)
    assert sample.kv_usage_ratio == 0.5
    assert sample.waiting_requests is None
    assert sample.sequence > 1_600_000_000_000
    with pytest.raises(msgspec.ValidationError, match="kv_usage_ratio"):
        worker_sample(kv_usage_ratio=1.5)


def test_options_set_the_fields_of_samples() -> None:
    one = sampler(parser().parse_args(["sample", "--kv-usage-ratio", "0.95", "--waiting-requests", "3"]))(7.0)
    assert (one.kv_usage_ratio, one.waiting_requests, one.running_requests) == (0.95, 3, None)
    flags = "shape ramp --field waiting-requests --from 0 --to 10 --period 20 --kv-usage-ratio 0.5"
    at = sampler(parser().parse_args(flags.split()))
    assert [at(t_s).waiting_requests for t_s in (0, 5, 10, 20, 90)] == [0, 2, 5, 10, 10]
    assert at(5).kv_usage_ratio == 0.5


def arguments(values: dict[str, Any]) -> list[str]:
    return [part for name, value in values.items() for part in (f"--{name.replace('_', '-')}", json.dumps(value))]


@pytest.mark.parametrize(("command", "kind"), [("sample", WorkerSample), ("traffic", TrafficSample)])
def test_every_field_of_a_sample_can_be_set(command: str, kind: type[Struct]) -> None:
    values = Extremes(random.Random(7), share=0.3)
    seen: set[str] = set()
    while seen != set(kind.__struct_fields__):
        fields = values.fields(kind)
        seen |= fields.keys()
        args = parser().parse_args([command, *arguments(fields)])
        found = sampler(args)(0.0) if command == "sample" else traffic_sampler(args)(0.0)
        assert found == msgspec.convert(fields, kind)


def test_a_shape_that_leaves_the_bounds_is_refused_before_it_starts() -> None:
    with pytest.raises(msgspec.ValidationError):
        sampler(parser().parse_args(["shape", "sine", "--to", "1.2"]))
    with pytest.raises(msgspec.ValidationError):
        sampler(parser().parse_args(["sample", "--waiting-requests", "-1"]))


@pytest.mark.parametrize(
    "flags",
    ["", "shape", "shape square", "sample --hz 0", "sample --rank one", "sample --hz nan", "trace x --speed -1"],
)
def test_invalid_options_are_refused(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parser().parse_args(flags.split())
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err
