"""Reasons and remedies of models that are held, while other models are planned."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from loadline.config import load
from loadline.core.vocabulary.reasons import ReasonCode
from loadline.runtime.settings import settings
from loadline.sim.step import Stepper
from loadline.wire.steps import StepInput, StepItem
from tests.support.step_simulator import frame, record

LINEAR: Final = "linear = { alpha = 10, beta = 0.2, gamma = 5, delta = 0.05, max_kv_tokens = 1e6 }"
Sample = dict[str, Any]
ARRIVALS: Final[Sample] = {"arrivals": 40, "completed": 40, "isl_tokens": 1_000.0, "osl_tokens": 200.0}
IDLE: Final[Sample] = {"arrivals": 0}


def _model(name: str, planner: str, keys: str, objectives: str, role: str = "aggregated") -> str:
    head = f'[[models]]\nname = "{name}"\nplanner = "{planner}"\nobjectives = {objectives}\n'
    return f'{head}[[models.pools]]\nname = "main"\nrole = "{role}"\nreplicas_max = 9\n{keys}\n'


class HeldAndPlannedModels:
    """Models with two workers each: ``held`` as a test sets it up, and ``planned`` under rising
    traffic.
    """

    def __init__(
        self, folder: Path, planner: str, *, keys: str = LINEAR, objectives: str = "{}", role: str = "aggregated"
    ) -> None:
        path = folder / "loadline.toml"
        path.write_text(
            _model("held", planner, keys, objectives, role) + _model("planned", planner, LINEAR, "{}"),
            encoding="utf-8",
        )
        self.stepper = Stepper(settings(load(path, {})))
        self.counts: dict[str, list[int]] = {"held": [], "planned": []}
        self.roles = {"held": role, "planned": "aggregated"}
        self.hold_sentences: dict[ReasonCode, str] = {}
        """Explanation of the last hold of ``held``."""
        self._second = 0
        self._gone: list[StepItem] = []

    def run(self, seconds: int, held: Callable[[int], Sample | None]) -> None:
        """Run with this traffic of ``held``; None: no reports."""
        for second in range(seconds):
            self._second += 1
            items = self._workers() if self._second == 1 else []
            for name, sample in (("held", held(second)), ("planned", ARRIVALS | {"arrivals": 20 + self._second // 5})):
                for worker in range(2):
                    items.append(self._load(name, worker))
                if sample is not None:
                    payload = {"sequence": self._second, "interval_ms": 1_000} | sample
                    items.append(
                        frame(
                            f"traffic.{name}.f", {"model": name, "frontend": "f", "incarnation": 1, "sample": payload}
                        )
                    )
            answer = self.stepper.step(StepInput(self._second * 1_000, items))
            assert answer.rejected == []
            for decision in answer.decisions:
                self.counts[decision.model].append(decision.targets[0].replicas)
            for hold in answer.holds:
                if hold.model == "held":
                    self.hold_sentences = {reason.code: reason.sentence for reason in hold.reasons}

    def _workers(self) -> list[StepItem]:
        return [
            record(f"{name}-{n}", model=name, pool="main", role=self.roles[name])
            for name in self.counts
            for n in range(2)
        ]

    def _load(self, name: str, number: int) -> StepItem:
        worker, sample = f"{name}-{number}", {"sequence": self._second, "timestamp_ms": 0, "waiting_requests": 0}
        payload = {"model": name, "pool": "main", "worker": worker, "incarnation": 1, "samples": [sample]}
        return frame(f"load.{name}.main.{worker}", payload)


def busy(_second: int) -> Sample:
    return ARRIVALS


def silent(_second: int) -> None:
    return None


def idle(_second: int) -> Sample:
    return IDLE


def sweep(folder: Path, **changed: object) -> str:
    """Return the keys of a pool with modified profiles."""
    prefill: dict[str, object] = {
        "prefill_isl": [100, 8_000],
        "prefill_ttft": [10.0, 400.0],
        "prefill_thpt_per_gpu": [10_000.0, 20_000.0],
    }
    decode: dict[str, object] = {
        "x_kv_usage": [0.1, 0.9, 0.1, 0.9],
        "y_context_length": [500, 500, 5_000, 5_000],
        "z_itl": [10.0, 40.0, 12.0, 45.0],
        "z_thpt_per_gpu": [1_000.0, 3_000.0, 900.0, 2_500.0],
        "max_kv_tokens": 1e6,
    }
    for name, keys in (("prefill", prefill), ("decode", decode)):
        text = json.dumps({key: changed.get(key, value) for key, value in keys.items()})
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return 'prefill_profile = "prefill.json"\ndecode_profile = "decode.json"'


PLANNERS: Final = pytest.mark.parametrize("planner", ["throughput", "sla"])


@PLANNERS
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"prefill_isl": [100], "prefill_ttft": [10.0], "prefill_thpt_per_gpu": [1e4]}, ["at least 2", "Profile the"]),
        ({"z_thpt_per_gpu": [0.0] * 4}, ["z_thpt_per_gpu", "below the minimum of 1e-06", "Profile the engine again"]),
        ({"prefill_ttft": [10.0, -1.0]}, ["prefill_ttft", "not within", "take the point out"]),
        ({"z_itl": ["x"] * 4}, ["decode.json"]),
        ({"max_kv_tokens": 0}, ["max_kv_tokens", "below the minimum of 1e-06"]),
    ],
)
def test_an_impossible_profile_is_the_reason_of_a_hold(
    tmp_path: Path, planner: str, changed: dict[str, object], words: list[str]
) -> None:
    two = HeldAndPlannedModels(tmp_path, planner, keys=sweep(tmp_path, **changed))
    two.run(200, busy)
    assert two.counts["held"] == []
    assert max(two.counts["planned"]) > 2
    assert all(word in two.hold_sentences[ReasonCode.PROFILE_UNUSABLE] for word in words), two.hold_sentences


@PLANNERS
@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("", ["no prefill profile is configured", "set prefill_profile or linear of the pool"]),
        (
            'prefill_profile = "no.npz"\ndecode_profile = "no.npz"',
            ["no.npz", "Give the path of a profile written by the profiler"],
        ),
        (
            'prefill_profile = "loadline.toml"\ndecode_profile = "loadline.toml"',
            ["loadline.toml", "Give the path of a profile"],
        ),
        ('prefill_profile = "prefill.json"', ["decode_profile: is missing"]),
    ],
)
def test_a_missing_or_unreadable_profile_is_the_reason_of_a_hold(
    tmp_path: Path, planner: str, keys: str, words: list[str]
) -> None:
    sweep(tmp_path)
    two = HeldAndPlannedModels(tmp_path, planner, keys=keys)
    two.run(200, busy)
    assert two.counts["held"] == []
    assert max(two.counts["planned"]) > 2
    assert all(word in two.hold_sentences[ReasonCode.PROFILE_UNUSABLE] for word in words), two.hold_sentences


@PLANNERS
def test_a_profile_with_two_points_suffices(tmp_path: Path, planner: str) -> None:
    two = HeldAndPlannedModels(tmp_path, planner, keys=sweep(tmp_path))
    two.run(200, lambda _second: ARRIVALS | {"arrivals": 100})
    assert max(two.counts["held"]) > 2


@PLANNERS
@pytest.mark.parametrize("objectives", ["{ ttft_ms = 4 }", "{ itl_ms = 9 }"])
def test_an_objective_below_the_best_latency_of_the_profile_is_reported(
    tmp_path: Path, planner: str, objectives: str
) -> None:
    two = HeldAndPlannedModels(tmp_path, planner, objectives=objectives)
    two.run(400, lambda _second: ARRIVALS | {"arrivals": 100})
    assert two.counts["held"] == []
    assert max(two.counts["planned"]) > 2
    assert "raise the objective or use faster engines" in two.hold_sentences[ReasonCode.SLA_INFEASIBLE]


@PLANNERS
def test_without_any_traffic_report_pools_are_held(tmp_path: Path, planner: str) -> None:
    """The whole history is unknown, so that there is no forecast."""
    two = HeldAndPlannedModels(tmp_path, planner)
    two.run(800, silent)
    assert two.counts["held"] == []
    assert max(two.counts["planned"]) > 2
    assert "have a frontend report" in two.hold_sentences[ReasonCode.TRAFFIC_UNKNOWN]


@PLANNERS
@pytest.mark.parametrize(
    ("traffic", "words"),
    [
        ({"arrivals": 100}, "no frontend reports their length: have it report isl_tokens"),
        ({"arrivals": 100, "isl_tokens": 500.0}, "none has completed: check that workers serve them"),
        ({"arrivals": 100, "isl_tokens": 500.0, "completed": 90}, "check whether they fail, or report osl_tokens"),
    ],
)
def test_the_reason_names_the_missing_traffic_figure(tmp_path: Path, planner: str, traffic: Sample, words: str) -> None:
    two = HeldAndPlannedModels(tmp_path, planner)
    two.run(400, lambda _second: traffic)
    assert two.counts["held"] == []
    assert words in two.hold_sentences[ReasonCode.TRAFFIC_UNKNOWN]


@PLANNERS
@pytest.mark.parametrize("role", ["aggregated", "decode"])
def test_a_kv_cache_below_one_request_is_reported(tmp_path: Path, planner: str, role: str) -> None:
    two = HeldAndPlannedModels(tmp_path, planner, keys=LINEAR.replace("1e6", "1"), role=role)
    two.run(200, busy)
    assert two.counts["held"] == []
    assert ReasonCode.SLA_INFEASIBLE not in two.hold_sentences
    assert (
        "holds 1100 tokens on average, more than the KV cache of a worker (1 tokens)"
        in (two.hold_sentences[ReasonCode.KV_CACHE_TOO_SMALL])
    )


@PLANNERS
def test_failing_requests_alone_size_no_pool(tmp_path: Path, planner: str) -> None:
    failing = {"arrivals": 20, "completed": 20, "isl_tokens": 0.0, "osl_tokens": 0.0}
    two = HeldAndPlannedModels(tmp_path, planner)
    two.run(300, lambda _second: failing)
    assert two.counts["held"] == []
    assert ReasonCode.TRAFFIC_UNKNOWN in two.hold_sentences
    two.run(400, lambda _second: ARRIVALS | {"arrivals": 100})
    before = two.counts["held"][-1]
    two.run(1_500, lambda _second: ARRIVALS | {"arrivals": 100, "completed": 100, "osl_tokens": 0.0})
    assert two.counts["held"][-1] == before, "output lengths are known from earlier requests"


@pytest.mark.parametrize("before_s", [0, 400])
def test_no_requests_are_a_load_of_0(tmp_path: Path, before_s: int) -> None:
    two = HeldAndPlannedModels(tmp_path, "throughput")
    two.run(before_s, lambda _second: ARRIVALS | {"arrivals": 10})
    two.run(800, idle)
    assert two.counts["held"] == [1], "the minimum, which needs no lengths"


@PLANNERS
def test_a_gap_in_reports_is_not_idle_time(tmp_path: Path, planner: str) -> None:
    two = HeldAndPlannedModels(tmp_path, planner)
    two.run(600, lambda _second: ARRIVALS | {"arrivals": 60})
    before = list(two.counts["held"])
    two.run(600, silent)
    assert two.counts["held"] == before, "three unknown intervals remove no worker"
    assert ReasonCode.TRAFFIC_UNKNOWN in two.hold_sentences
    two.run(400, lambda _second: ARRIVALS | {"arrivals": 160})
    assert len(two.counts["held"]) > len(before), "and planning continues"
