"""Answers of the load decisions to the cases of Dynamo's newest load planner."""

from typing import Any

from loadline.core.engines.regression import Line, Regression
from loadline.core.planning.guardrails.gpu_band import GpuBand
from loadline.core.planning.guardrails.pool_changes import PoolChange, fit_changes
from loadline.core.planning.sizing.load.steps import SENSITIVITY, can_consolidate
from tests.vectors.answering import Answer, NotCovered, only
from tests.vectors.dynamo_terms import LIMITS, ROLES, band_of, gpus_of, learned, least_of, leg_of, word

CONFIG = (*LIMITS, "optimization_target", "itl_ms", "ttft_ms", "max_throughput_scaling_replicas")


def load_1_6(given: dict[str, Any]) -> dict[str, Any]:
    """Return a load decision, limited from below by the throughput decision if there was one."""
    only(given, "counts", "config", "p_caps", "d_caps", "prefill", "decode", "history", "raw", "propose")
    config = given.get("config", {})
    only(config, *CONFIG)
    counts = given["counts"]
    if "propose" in given:
        steps = [new - now for new, now in zip(given["propose"], counts, strict=True)]
    elif config.get("optimization_target", "sla") != "sla":
        raise NotCovered("no planner goes by fixed levels of the fullest worker: the threshold planner takes the mean")
    elif any(len(given[role]) != count for role, count in zip(ROLES, counts, strict=True)):
        return {"decision": None, "load": "worker_count_mismatch"}
    else:
        steps = [_sla_step(given, config, role) for role in ROLES]
    legs = [leg_of(config, *one) for one in zip(ROLES, counts, given.get("raw", [None, None]), strict=True)]
    bounds = list(fit_changes(legs, GpuBand(ceiling=band_of(config).ceiling)).counts) if "raw" in given else [0, 0]
    proposed = [
        PoolChange(now, max(now + step, bound, least_of(config, role)), gpus_of(config, role), least_of(config, role))
        for role, now, step, bound in zip(ROLES, counts, steps, bounds, strict=True)
    ]
    fitted = fit_changes(proposed, band_of(config))
    final = list(fitted.counts)
    reasons = {
        f"load_{role[0]}": {1: "scale_up", -1: "scale_down"}.get(step) for role, step in zip(ROLES, steps, strict=True)
    }
    return {
        "decision": final if final != counts else None,
        "bounds": bounds,
        "load": word(fitted.code),
        **reasons,
    }


def _sla_step(given: dict[str, Any], config: dict[str, Any], role: str) -> int:
    key, sla_ms = ("pt", config["ttft_ms"]) if role == "prefill" else ("kv", config["itl_ms"])
    line = _iterations(given["history"].get(role, []), key).line()
    if line is None:
        return 0
    return _line_step(line, [worker.get(key, 0) for worker in given[role]], sla_ms)


def _line_step(line: Line, loads: list[float], sla_ms: float) -> int:
    if all(line.at(load) > sla_ms for load in loads):
        return 1
    return -1 if can_consolidate(loads, line.at, sla_ms, SENSITIVITY) else 0


def _iterations(history: list[dict[str, float]], key: str) -> Regression:
    return learned([[one[key], one["wall"] * 1_000.0] for one in history])


ANSWERS: dict[str, Answer] = {"v3.load": load_1_6}
