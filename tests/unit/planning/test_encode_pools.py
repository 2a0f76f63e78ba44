"""Encode pools: sized by their own load with any planner, and never a part of the sizing of others."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from loadline.config import parse
from loadline.config.rules import validate
from loadline.config.summary import describe
from loadline.core.engines.profile import EngineProfile, LinearKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.guardrails.knobs import GuardrailKnobs
from loadline.core.planning.planners import BUILT_IN
from loadline.core.planning.planners.static import StaticKnobs
from loadline.core.queries.status import status
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.scalars import Role
from loadline.errors import ConfigError
from loadline.sim.step import Stepper
from loadline.wire.steps import StepInput, StepItem, StepOutput

NAMES = sorted(kind.name for kind in BUILT_IN)
ENGINE = EngineProfile(linear=LinearKnobs(10.0, 0.08, 5.0, 0.02, max_kv_tokens=1e6))
AT_ONCE = GuardrailKnobs(stabilisation_ms=0, cooldown_down_ms=0, warm_up_ms=0)
ENCODE: Role = "encode"


class Fleet:
    """Prefill, decode and encode workers that report each second; every decision is applied at once."""

    def __init__(self, planner: str = "saturation", encode: int = 2, **knobs: Any) -> None:
        roles: tuple[Role, ...] = ("prefill", "decode", "encode") if encode else ("prefill", "decode")
        pools = tuple(PoolKnobs(role, role, replicas_max=9) for role in roles)
        fixed = StaticKnobs({"prefill": 2, "decode": 2} | ({"encode": 3} if encode else {}))
        model = ModelKnobs("m", pools, planner=planner, planner_knobs={"static": fixed}, guardrails=AT_ONCE, **knobs)
        self.stepper = Stepper(Settings("a", "all", (model,), profiles={"m": dict.fromkeys(roles, ENGINE)}))
        self.workers: dict[str, Role] = {}
        self.second = 0
        self.drained: list[str] = []
        self.targets: dict[str, list[int]] = {role: [] for role in roles}
        self._items: list[StepItem] = []
        for role in roles:
            self._start(role, encode if role == "encode" else 2)

    def run(self, seconds: int, *, waiting: int = 0, running: int = 0, load: float = 0.5) -> None:
        """Report this load of each encode worker, and ``load`` of the others."""
        for _ in range(seconds):
            self.second += 1
            for name, role in self.workers.items():
                encodes = role == "encode"
                sample: dict[str, float] = {"sequence": self.second, "timestamp_ms": 0}
                sample |= {"waiting_requests": waiting if encodes else 0}
                sample |= {"running_requests": running} if encodes else {"running_requests": 1, "kv_usage_ratio": load}
                names = {"model": "m", "pool": role, "worker": name, "incarnation": 1}
                self._send(f"load.m.{role}.{name}", names | {"samples": [sample]})
            figures = {
                "arrivals": 9,
                "completed": 9,
                "isl_tokens": 500.0,
                "osl_tokens": 99.0,
                "ttft_ms": 9.0,
                "itl_ms": 9.0,
            }
            traffic = {"sequence": self.second, "interval_ms": 1_000} | figures
            self._send("traffic.m.f", {"model": "m", "frontend": "f", "incarnation": 1, "sample": traffic})
            items, self._items = self._items, []
            self._apply(self.stepper.step(StepInput(self.second * 1_000, items)))

    def counts(self) -> Counter[Role]:
        return Counter(self.workers.values())

    def _send(self, subject: str, payload: dict[str, Any]) -> None:
        self._items.append(StepItem(subject=f"loadline.v1.{subject}", payload=Raw(msgspec.json.encode(payload))))

    def _start(self, role: Role, count: int) -> None:
        for _ in range(count):
            name = f"{role}-{len(self.workers)}-{self.second}"
            self.workers[name] = role
            record = {"model": "m", "pool": role, "worker": name, "role": role, "incarnation": 1}
            self._items.append(StepItem(record=Raw(msgspec.json.encode(record))))

    def _apply(self, output: StepOutput) -> None:
        assert [one for one in output.rejected if one.subject] == []
        for decision in output.decisions:
            for target in decision.targets:
                self.targets[target.role].append(target.replicas)
                self._start(target.role, target.replicas - self.counts()[target.role])
            fields = {name: getattr(decision, name) for name in ("decision_id", "model", "epoch", "sequence")}
            observed = {target.pool: target.replicas for target in decision.targets}
            self._send("applied.m", fields | {"scaler": "s", "status": "done", "observed": observed})
        for drain in output.drains:
            role = self.workers.pop(drain.worker)
            assert drain.role == role
            self.drained.append(drain.worker)
            names = {"model": "m", "pool": role, "worker": drain.worker, "incarnation": 1}
            self._send(f"drained.{drain.worker}", names)
            self._items.append(StepItem(gone=drain.worker))


@pytest.mark.parametrize("planner", [name for name in NAMES if name != "static"])
def test_busy_encoders_grow_and_idle_ones_are_drained_with_any_planner(planner: str) -> None:
    fleet = Fleet(planner)
    fleet.run(60, waiting=8, running=1)
    peak = fleet.counts()[ENCODE]
    assert peak > 2
    fleet.run(300, waiting=0, running=0)
    assert fleet.counts()[ENCODE] == 1
    assert any(name.startswith("encode") for name in fleet.drained)


def test_the_static_planner_sets_the_count_of_encode_pools() -> None:
    fleet = Fleet("static")
    fleet.run(30, waiting=50, running=1)
    assert fleet.counts() == {"prefill": 2, "decode": 2, "encode": 3}


@pytest.mark.parametrize("planner", NAMES)
def test_encode_pools_do_not_change_the_counts_of_others(planner: str) -> None:
    with_encode, without = Fleet(planner), Fleet(planner, encode=0)
    for waiting, load in ((0, 0.5), (50, 0.95), (0, 0.1)):
        with_encode.run(60, waiting=waiting, running=1, load=load)
        without.run(60, load=load)
        assert with_encode.counts() - Counter({ENCODE: 99}) == without.counts()


def test_encode_workers_without_reports_are_held() -> None:
    fleet = Fleet()
    fleet.run(30)
    before = fleet.counts()[ENCODE]
    assert {one.pool for hold in _last(fleet).holds for one in hold.reasons} >= {ENCODE}
    assert before == fleet.counts()[ENCODE]


def _last(fleet: Fleet) -> StepOutput:
    fleet.second += 30
    return fleet.stepper.step(StepInput(fleet.second * 1_000, []))


def test_encode_workers_are_shown_and_count_in_the_budget() -> None:
    fleet = Fleet(gpu_budget_max=7)
    fleet.run(60, waiting=50, running=1)
    assert fleet.counts().total() == 7, "the budget limits their growth"
    controller = fleet.stepper.controller
    found = status(controller.settings, controller.state, "a", 0, fleet.second * 1_000).models[0]
    ready = fleet.counts()[ENCODE]
    assert [(pool.role, pool.ready, pool.waiting_requests) for pool in found.pools][-1] == (ENCODE, ready, 50 * ready)


def test_the_loads_of_encode_pools_survive_a_restart() -> None:
    fleet = Fleet()
    fleet.run(30, waiting=1, running=1)
    controller = fleet.stepper.controller
    snapshot = controller.snapshot()
    controller.restore(snapshot)
    assert controller.snapshot() == snapshot
    model = controller.state.fleet.models["m"]
    assert model.encode is not None
    assert list(model.encode.rules.pools) == [ENCODE]


POOL = 'pools = [{{ name = "e", role = "encode" }}{}]'


def test_a_model_needs_other_pools_too() -> None:
    config = parse(f'[[models]]\nname = "m"\n{POOL.format("")}', "here")
    with pytest.raises(ConfigError, match="has encode pools only"):
        validate(config)


@pytest.mark.parametrize("others", ['{ name = "a", role = "aggregated" }', '{ name = "d", role = "decode" }'])
def test_the_configuration_describes_the_sizing_of_encode_pools(others: str) -> None:
    config = parse(f'[[models]]\nname = "m"\nplanner = "queueing"\n{POOL.format(", " + others)}', "here")
    assert not any("profile" in warning for warning in validate(config) if "pools[0]" in warning)
    text = describe(config)
    assert "Pool e (encode)" in text
    assert "A worker is full while it computes." in text
