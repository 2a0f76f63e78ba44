"""Answers of the performance models and the arithmetic of planners to Dynamo's cases."""

from pathlib import Path
from typing import Any

import numpy as np

from loadline.core.engines.latency_models import DecodeSurface, PrefillCurve
from loadline.core.engines.lengths import computed_isl
from loadline.core.engines.regression import Regression
from loadline.core.planning.guardrails import gpu_band as budget
from loadline.core.planning.guardrails import pool_changes
from loadline.core.planning.sizing import replicas
from loadline.core.planning.sizing.load import steps as load
from loadline.core.planning.sizing.profile import prefill_capacity as capacity
from loadline.profile_files import read_decode, read_prefill
from tests.vectors.answering import Answer, NotCovered, only
from tests.vectors.dynamo_terms import LIMITS, ROLES, band, band_of, learned, least_of, leg_of, word

DATA = Path(__file__).parent / "data"
STEPS = {1: "up", 0: None, -1: "down"}


def regress(given: dict[str, Any]) -> dict[str, Any]:
    only(given, "points", "sla")
    regression = learned(given["points"])
    line = regression.line()
    return {
        "slope": line.slope if line else None,
        "intercept": line.intercept_ms if line else None,
        "x_sla": regression.load_at(given["sla"]) if "sla" in given else None,
    }


def load_1_0(given: dict[str, Any]) -> dict[str, Any]:
    only(given, "component", "points", "sla", "workers", "num_workers", "avg_isl", "sensitivity")
    x_sla = learned(given["points"]).load_at(given["sla"])
    workers = given["workers"]
    count = given.get("num_workers", len(workers))
    if x_sla is None or count != len(workers):
        return {"decision": None}
    target = x_sla - given["avg_isl"] if given["component"] == "prefill" else x_sla
    step = load.load_step(workers, target, given.get("sensitivity", 80) / 100)
    return {"decision": count + step if step else None}


def aggregated_1_0(given: dict[str, Any]) -> dict[str, Any]:
    only(given, "ttft_points", "itl_points", "ttft", "itl", "avg_isl", "workers", "sensitivity")
    sensitivity = given.get("sensitivity", 80) / 100
    workers = given["workers"]
    ttft_load = learned(given["ttft_points"]).load_at(given["ttft"])
    itl_load = learned(given["itl_points"]).load_at(given["itl"])
    prefill: load.Step = 0
    decode: load.Step = 0
    if ttft_load is not None:
        prefill = load.load_step([one[0] for one in workers], ttft_load - given["avg_isl"], sensitivity)
    if itl_load is not None:
        decode = load.load_step([one[1] for one in workers], itl_load, sensitivity)
    step = load.combine_steps(prefill, decode)
    return {
        "prefill": STEPS[prefill],
        "decode": STEPS[decode],
        "desired": len(workers) + step if step else None,
    }


def replicas_1_0(given: dict[str, Any]) -> dict[str, Any]:
    only(given, "num_req", "isl", "osl", "p_thpt", "d_thpt", "p_corr", "d_corr", "config")
    config = given["config"]
    only(
        config,
        "throughput_adjustment_interval",
        "max_gpu_budget",
        "min_endpoint",
        "prefill_engine_num_gpu",
        "decode_engine_num_gpu",
    )
    rate = given["num_req"] / config["throughput_adjustment_interval"]
    least = config.get("min_endpoint", 1)
    gpus = (config.get("prefill_engine_num_gpu", 1), config.get("decode_engine_num_gpu", 1))
    isl = given["isl"] * min(1.0, given.get("p_corr", 1.0))
    prefill = replicas.replicas_for(rate * isl, given["p_thpt"] * gpus[0], least)
    decode = replicas.replicas_for(rate * given["osl"], given["d_thpt"] * gpus[1], least)
    shares = [budget.PoolGpus(prefill, gpus[0], least), budget.PoolGpus(decode, gpus[1], least)]
    return {"raw": [prefill, decode], "final": budget.fit(shares, band(-1, config.get("max_gpu_budget", 8)))}


def budget_pair_1_0(given: dict[str, Any]) -> list[int]:
    only(given, "p", "d", "p_gpu", "d_gpu", "max_gpu", "min_endpoint")
    least = given.get("min_endpoint", 1)
    shares = (budget.PoolGpus(given["p"], given["p_gpu"], least), budget.PoolGpus(given["d"], given["d_gpu"], least))
    return budget.fit(shares, band(-1, given["max_gpu"]))


def budget_single_1_0(given: dict[str, Any]) -> int:
    only(given, "n", "gpu", "max_gpu", "min_endpoint")
    share = budget.PoolGpus(given["n"], given["gpu"], given.get("min_endpoint", 1))
    return budget.fit([share], band(-1, given["max_gpu"]))[0]


def interpolation(given: dict[str, Any]) -> dict[str, Any]:
    only(given, "isl", "osl", "itl")
    engine = "dynamo_h200_llama3.1-8b-fp8_tp1"
    prefill = PrefillCurve(read_prefill(DATA / f"{engine}_prefill.npz"))
    decode = DecodeSurface(read_decode(DATA / f"{engine}_decode.npz"))
    isl = np.asarray(float(given["isl"]))
    best = decode.find_best_throughput_per_gpu(given["itl"], given["isl"] + given["osl"] / 2)
    return {
        "ttft_ms": float(prefill.ttft_ms(isl)),
        "prefill_tok_s_gpu": float(prefill.tokens_per_s_per_gpu(isl)),
        "best": best and {"tok_s_gpu": best.tokens_per_s_per_gpu, "itl_ms": best.itl_ms, "kv": best.kv_usage},
        "isl_range": [prefill.isl_min, prefill.isl_max],
        "ctx_max": float(decode.contexts[-1]),
        "max_kv_tokens": decode.max_kv_tokens,
    }


def budget_1_6(given: dict[str, Any]) -> Any:
    only(given, "fn", "args")
    if given["fn"] not in BUDGETS:
        raise NotCovered(f"no answer for {given['fn']}")
    return BUDGETS[given["fn"]](*given["args"])


def _bounds(gpus: int, floor: int, ceiling: int, tolerance: int) -> list[Any]:
    return [band(floor, ceiling).contains(gpus, tolerance), ""]


def _clamp_pair(p: int, d: int, p_gpu: int, d_gpu: int, *rest: int) -> list[int]:
    floor, ceiling, p_least, *d_least = rest
    shares = (budget.PoolGpus(p, p_gpu, p_least), budget.PoolGpus(d, d_gpu, (d_least or [p_least])[0]))
    return budget.fit(shares, band(floor, ceiling))


def _legs(p: int, d: int, p_new: int, d_new: int, *rest: int) -> tuple[list[pool_changes.PoolChange], budget.GpuBand]:
    p_gpu, d_gpu, floor, ceiling, p_least, d_least = rest
    return [pool_changes.PoolChange(p, p_new, p_gpu, p_least), pool_changes.PoolChange(d, d_new, d_gpu, d_least)], band(
        floor, ceiling
    )


def _settled(legs: list[pool_changes.PoolChange], limits: budget.GpuBand) -> list[Any]:
    fitted = pool_changes.fit_changes(legs, limits)
    return [*fitted.counts, word(fitted.code)]


BUDGETS: dict[str, Any] = {
    "compute_tolerance": lambda widths: budget.widest(*widths),
    "bounds_for_total": _bounds,
    "proportional_clamp_pair": _clamp_pair,
    "proportional_clamp_single": lambda n, gpu, floor, ceiling, least: budget.fit(
        [budget.PoolGpus(n, gpu, least)], band(floor, ceiling)
    )[0],
    "guard_single_scaling_budget": lambda now, new, gpu, floor, ceiling, least: _settled(
        [pool_changes.PoolChange(now, new, gpu, least)], band(floor, ceiling)
    ),
    "fit_directional_budget_pair": lambda *args: list(pool_changes.fit_direction(*_legs(*args))),
    "guard_disagg_scaling_budget": lambda *args: _settled(*_legs(*args)),
}


def prefill_capacity(given: dict[str, Any]) -> dict[str, Any]:
    only(given, "worker_type", "history", "isl", "osl", "ttft_ms", "kv_hit_rate")
    line = _iterations(given).line()
    isl = computed_isl(given["isl"], given.get("kv_hit_rate", 0.0))
    found = capacity.prefill_capacity(line, isl, given["ttft_ms"]) if line else None
    if found is None:
        return {"rps": None, "ttft_ms": None, "eligible": False}
    return {"rps": found.requests_per_s, "ttft_ms": found.ttft_ms, "eligible": True}


def prefill_estimate(given: dict[str, Any]) -> dict[str, Any]:
    only(given, "worker_type", "history", "query")
    only(given["query"], "qpt")
    line = _iterations(given).line()
    return {"ttft_ms": line.at(given["query"]["qpt"]) if line else None, "ready": line is not None}


def _iterations(given: dict[str, Any]) -> Regression:
    """Fit the iteration times of a prefill engine to its tokens."""
    if given["worker_type"] != "prefill":
        raise NotCovered(f"no capacity of {given['worker_type']} from its iterations")
    return learned([[one["pt"], one["wall"] * 1_000.0] for one in given["history"]])


def throughput_1_6(given: dict[str, Any]) -> dict[str, Any]:
    only(given, "counts", "raw", "demand", "rps", "config")
    config = given.get("config", {})
    only(config, *LIMITS, "mode", "enable_load_scaling", "max_throughput_scaling_replicas")
    mode = config.get("mode", "disagg")
    needs = given.get("raw") or [
        None if rate is None else replicas.replicas_for(given["demand"], rate, least_of(config, role))
        for role, rate in zip(ROLES, given["rps"], strict=True)
    ]
    legs = [leg_of(config, *one) for one in zip(ROLES, given["counts"], needs, strict=True)]
    planned = [at for at, role in enumerate(ROLES) if mode == "disagg" or (role == "prefill") == (mode == "prefill")]
    own = [legs[at] for at in planned]
    fitted = pool_changes.fit_changes(own, band_of(config))
    lowest = pool_changes.fit_changes(own, budget.GpuBand(ceiling=band_of(config).ceiling))
    counts: list[int | None] = [None, None]
    bounds: list[int | None] = [None, None]
    for at, count, bound in zip(planned, fitted.counts, lowest.counts, strict=True):
        counts[at], bounds[at] = count, bound
    ready = all(needs[at] is not None for at in planned)
    why = word(fitted.code) if ready else "model_not_ready"
    return _throughput(config, why, legs, counts, bounds)


def _throughput(
    config: dict[str, Any], why: str | None, legs: list[pool_changes.PoolChange], counts: list[int | None], bounds: Any
) -> dict[str, Any]:
    """Return a throughput decision; with load planning enabled it only sets the lower bounds of load decisions."""
    if config.get("enable_load_scaling", False):
        return {"decision": None, "bounds": bounds, "throughput": why or "set_lower_bound"}
    changed = any(count not in {None, leg.current} for leg, count in zip(legs, counts, strict=True))
    reason = why or ("scale" if changed else "no_change")
    return {"decision": counts if changed else None, "bounds": None, "throughput": reason}


ANSWERS: dict[str, Answer] = {
    "v1.regress": regress,
    "v1.load": load_1_0,
    "v1.agg_load": aggregated_1_0,
    "v1.replicas": replicas_1_0,
    "v1.budget_pair": budget_pair_1_0,
    "v1.budget_single": budget_single_1_0,
    "v1.interp": interpolation,
    "v3.budget": budget_1_6,
    "v3.capacity": prefill_capacity,
    "v3.estimate": prefill_estimate,
    "v3.throughput": throughput_1_6,
}
