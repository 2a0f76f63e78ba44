"""Statuses of made-up fleets, for the live page."""

from types import SimpleNamespace
from typing import cast

from loadline.core.state.agent_state import AgentState
from loadline.core.state.explanation_log import EncodedExplanation, ExplanationLog
from loadline.core.vocabulary.conditions import Condition
from loadline.core.vocabulary.reasons import Explanation, Reason, ReasonCode, Recommendation
from loadline.core.vocabulary.status import (
    AgentStatus,
    DecisionSummary,
    Estimates,
    ForecastStatus,
    ModelStatus,
    PoolEstimate,
    PoolStatus,
    TrafficStatus,
    WorkerStatus,
)

START_MS = 1_795_470_000_000


def worker(number: int, kv: float = 0.5, state: str = "ready", age_ms: int = 200) -> WorkerStatus:
    """Return a worker."""
    return WorkerStatus(f"decode-{number}", state, age_ms, kv, number % 4, 8 + number % 9)


def pool(workers: int = 4, desired: int | None = None, kv: float = 0.5) -> PoolStatus:
    """Return a decode pool of ready workers."""
    listed = tuple(worker(number, kv) for number in range(1, workers + 1))
    return PoolStatus(
        "decode", "decode", workers if desired is None else desired, workers, 0, 0, 0, workers, kv, 3, 40, listed
    )


def model(name: str = "llama", workers: int = 4, at_ms: int = START_MS) -> ModelStatus:
    """Return a model with one pool."""
    forecast = ForecastStatus(12.0, 60_000, observed_requests=100.0, error_requests=10.0)
    return ModelStatus(
        model=name,
        planner="sla",
        paused=False,
        no_operation=False,
        pools=(pool(workers),),
        traffic=TrafficStatus(10.0, 900.0, 120.0, 240.0, 22.0, 2, 40, 1, 0.97, 0.991),
        decision=DecisionSummary("d1", name, 7, 1, at_ms, "done", {"decode": 4}, ("decode:kv_usage_high",)),
        hold=(),
        conditions=(Condition("MetricsAvailable", True, "MetricsFound", "", at_ms),),  # noqa: FBT003 - a fact
        objectives={"ttft_ms": 500.0, "itl_ms": 40.0},
        settled=True,
        estimates=Estimates(forecast, pools={"decode": PoolEstimate(serves_per_s=3.0)}),
        epoch=7,
    )


def agent(*models: ModelStatus, at_ms: int = START_MS) -> AgentStatus:
    """Return an agent that leads."""
    return AgentStatus("agent-1", "1.2.3", at_ms, 60_000, True, 7, "agent-1", True, True, models, {}, {})  # noqa: FBT003


def explanation(name: str = "llama", at_ms: int = START_MS, decision_id: str = "d1") -> Explanation:
    """Return the explanation of a decision."""
    cooldown = Reason.of(
        ReasonCode.COOLDOWN, "decode", wanted=3, allowed=4, age_ms=4_000, cooldown_ms=9_000, left_ms=5_000
    )
    planned = Recommendation("sla", {"decode": 4}, (Reason.of(ReasonCode.NO_WORKERS, "decode"),), {"load": 2.5})
    return Explanation(name, at_ms, "decided", decision_id, {"decode": 3}, (planned,), (cooldown,), {"decode": 4})


def state_of(status: AgentStatus | None) -> AgentState:
    """Return what the live page reads of a core with these workers: all of them, and a hold."""
    models = {
        one.model: SimpleNamespace(
            hold=explanation(),
            pools={
                listed.pool: SimpleNamespace(
                    workers={
                        each.worker: SimpleNamespace(status=lambda _now, each=each: each) for each in listed.workers
                    }
                )
                for listed in one.pools
            },
        )
        for one in (status.models if status is not None else ())
    }
    log = ExplanationLog([EncodedExplanation.of(explanation())])
    return cast("AgentState", SimpleNamespace(explanations=log, fleet=SimpleNamespace(models=models)))
