"""Answers of the queueing model to the cases of the Workload Variant Autoscaler, and expected outputs of deviations.

The original has three models. The first equals ours. In the second, from its guide, all times are linear in the batch
as well, so it equals ours with other parameters.
"""

import math
from typing import Any

from loadline.core.engines.fitting import FitRefused, fit_line
from loadline.core.engines.linear import LinearTimes
from loadline.core.engines.queue_sizing import Targets, max_rate
from loadline.core.engines.queueing import EngineQueue
from tests.support.birth_death import BirthDeath
from tests.support.queue_analysis import analyse
from tests.vectors.answering import Answer, NotCovered, only
from tests.vectors.cases import Case

ENGINE = ("alpha", "beta", "gamma", "delta", "max_batch", "max_queue", "n_in", "n_out")
INFEASIBLE = {"error": "infeasible: target below bounded region"}


def rates(given: dict[str, Any]) -> dict[str, Any]:
    only(given, *ENGINE)
    least, most = _queue(given).rate_range_per_s
    return {"rate_min_rps": least, "rate_max_rps": most}


def analysis(given: dict[str, Any]) -> dict[str, Any]:
    only(given, *ENGINE, "lambda_rps")
    queue = _queue(given)
    found = analyse(queue, given["lambda_rps"])
    return {
        "throughput_rps": found.throughput_requests_per_s,
        "resp_ms": found.waiting_ms + found.service_ms,
        "wait_ms": found.waiting_ms,
        "serv_ms": found.service_ms,
        "prefill_ms": found.prefill_ms,
        "ttft_ms": found.ttft_ms,
        "itl_ms": found.itl_ms,
        "eff_concurrency": found.batch_requests,
        "num_in_service": found.running_requests,
        "num_in_system": found.running_requests + found.waiting_requests,
        "queue_len": found.waiting_requests,
        "busy_prob": 1.0 - _states(given).shares[0],
        "rho": found.utilisation,
        "p_block": found.refused,
        "max_rate_rps": queue.rate_range_per_s[1],
        "lambda_rps": given["lambda_rps"],
    }


def sizing(given: dict[str, Any]) -> dict[str, Any]:
    targets = ("target_ttft_ms", "target_itl_ms", "target_tps")
    only(given, *ENGINE, *targets)
    queue, (ttft_ms, itl_ms, tokens) = _queue(given), (given[name] for name in targets)
    ttft, itl = Targets(ttft_ms=ttft_ms or math.inf), Targets(itl_ms=itl_ms or math.inf)
    all_of = max_rate(queue, Targets(ttft.ttft_ms, itl.itl_ms, tokens))
    if not all_of.requests_per_s:
        return {**INFEASIBLE, **{name: given[name] for name in targets}}
    found = analyse(queue, all_of.requests_per_s)
    return {
        "rate_ttft_rps": max_rate(queue, ttft).requests_per_s,
        "rate_itl_rps": max_rate(queue, itl).requests_per_s,
        "rate_tps_rps": max_rate(queue, Targets(tokens_per_s=tokens)).requests_per_s,
        "throughput_rps": found.throughput_requests_per_s,
        "achieved_ttft_ms": found.ttft_ms,
        "achieved_itl_ms": found.itl_ms,
        "achieved_tps": found.throughput_requests_per_s * given["n_out"],
        **{name: given[name] for name in targets},
    }


def model_of_three(given: dict[str, Any]) -> dict[str, Any]:
    """Analyse the guide's model: an iteration takes ``alpha + share * batch`` ms plus the request's own part of it
    again.
    """
    only(given, "alpha", "beta", "gamma", "n_in", "n_out", "max_batch", "max_queue", "rps", "target_ttft", "target_itl")
    isl, osl, beta, gamma = (given[name] for name in ("n_in", "n_out", "beta", "gamma"))
    share = beta * (isl + osl) / (osl + 1) + gamma * (isl + osl / 2)
    times = LinearTimes(
        alpha=given["alpha"] + beta + gamma * (isl + osl / 2),
        beta=share,
        gamma=given["alpha"] + (beta + gamma) * isl,
        delta=share / isl,
    )
    queue = EngineQueue(times, isl, osl + 1, given["max_batch"], given["max_queue"])
    if "rps" not in given:
        targets = {"rate_itl": Targets(itl_ms=given["target_itl"]), "rate_ttft": Targets(ttft_ms=given["target_ttft"])}
        return {name: max_rate(queue, target).requests_per_s for name, target in targets.items()}
    found = analyse(queue, given["rps"])
    return {
        "resp_ms": found.waiting_ms + found.service_ms,
        "wait_ms": found.waiting_ms,
        # The guide applies Little's law to the service time alone, which gives the running requests.
        "num_in_system": found.running_requests,
        # In the guide, a first token also waits for an iteration, and the batch excludes the request itself.
        "ttft_ms": found.ttft_ms - share * (found.batch_requests - found.running_requests) + found.itl_ms,
        "itl_ms": found.itl_ms,
        "max_rps": queue.rate_range_per_s[1],
    }


def quirk(given: dict[str, Any]) -> dict[str, Any]:
    """Return the results for engines at which the original errs."""
    if "lambda_" in given:
        queue = EngineQueue(LinearTimes(6.958, 0.042, 14.0, 0.0005), 512.0, 128.0, 64, 640)
        found = analyse(queue, 2_000.0 * queue.rate_max)
        return {"rps": found.throughput_requests_per_s, "most": queue.rate_range_per_s[1], "ttft_ms": found.ttft_ms}
    only(given, "alpha", "beta", "gamma", "delta", "target_itl")
    if given["gamma"] or given["delta"]:
        raise NotCovered("no answer without the lengths of the requests")
    # Without a prefill there is no prompt here, so the parameters of prefill do not matter.
    queue = EngineQueue(LinearTimes(given["alpha"], given["beta"], 1.0, 0.0), 0.0, 128.0, 64, 640)
    found_size = max_rate(queue, Targets(itl_ms=given["target_itl"]))
    return {"bound": found_size.bound, "itl_ms": analyse(queue, found_size.requests_per_s).itl_ms}


def itl_fit(given: dict[str, Any]) -> Any:
    """Fit a line; the original's variable is KV usage."""
    only(given, "k", "A", "B")
    found = fit_line(given["k"], [given["A"] * k + given["B"] for k in given["k"]])
    if isinstance(found, FitRefused):
        return "reject"
    return {"A": found.line.slope, "B": found.line.intercept_ms, "itl_at_0_85": found.line.at(0.85)}


ANSWERS: dict[str, Answer] = {
    "wva.itl_fit": itl_fit,
    "wva.queueing": rates,
    "wva.queue_model_g1": analysis,
    "wva.queue_sizing_g1": sizing,
    "wva.queue_model_g3": model_of_three,
    "wva.quirk": quirk,
}


def is_refused(case: Case) -> bool:
    return case.op == "wva.queue_model_g1" and "error" in case.expected


def answered(case: Case) -> dict[str, Any]:
    """Return bounds: the throughput is at most that of a full batch."""
    most = 1_000.001 * _top(case.given)
    return {"throughput_rps": {"gt": 0, "max": most}, "ttft_ms": {"min": 0}, "p_block": {"max": 1}}


def has_one_place(case: Case) -> bool:
    return case.op == "wva.queueing" and "size_error" in case.expected


def rates_of_one_place(case: Case) -> dict[str, Any]:
    return {key: value for key, value in case.expected.items() if key != "size_error"}


def is_without_prompts(case: Case) -> bool:
    return case.op == "wva.queue_model_g1" and case.given["n_in"] == 0 and "error" not in case.expected


def batch_of_service(case: Case) -> dict[str, Any]:
    """Return the batch whose iterations take as long as the original's service time."""
    given = case.given
    iteration_ms = case.expected["serv_ms"] / max(1, given["n_out"] - 1)
    batch = (iteration_ms - given["alpha"]) / given["beta"]
    near = 2e-6 * iteration_ms / given["beta"]  # effect of the original's rounding
    return {**case.expected, "itl_ms": iteration_ms, "eff_concurrency": {"min": batch - near, "max": batch + near}}


def is_sized_without_prompts(case: Case) -> bool:
    return case.op == "wva.queue_sizing_g1" and case.given["n_in"] == 0 and not is_flat(case)


def sized_without_prompts(case: Case) -> dict[str, Any]:
    given = case.given
    if _is_below_floor(given):
        return INFEASIBLE
    itl_ms = {"min": given["alpha"] + given["beta"]}
    if not given["target_itl_ms"]:
        return {**case.expected, **({} if "error" in case.expected else {"achieved_itl_ms": itl_ms})}
    expected = {key: case.expected.get(key, {"gt": 0}) for key in ("rate_ttft_rps", "rate_tps_rps")}
    return {**expected, "achieved_itl_ms": {**itl_ms, "max": given["target_itl_ms"] * 1.00001}}


def is_flat(case: Case) -> bool:
    return case.op == "wva.queue_sizing_g1" and case.given["max_batch"] == 1 and bool(case.given["target_itl_ms"])


def sized_flat(case: Case) -> dict[str, Any]:
    """Return the expected sizing if the ITL is the same at every rate: the objective is met at all rates or at none."""
    if _is_below_floor(case.given):
        return INFEASIBLE
    return {
        "rate_itl_rps": 999.0 * _top(case.given),
        "rate_ttft_rps": case.expected.get("rate_ttft_rps", {"gt": 0}),
        "achieved_itl_ms": case.given["alpha"] + case.given["beta"],
    }


def is_at_floor(case: Case) -> bool:
    """Return True if a target is so close to its minimum that a millionth of it matters."""
    if case.op != "wva.queue_sizing_g1" or "error" in case.expected or is_flat(case) or case.given["n_in"] == 0:
        return False
    return any(case.given[name] and case.given[name] < 1.005 * floor for name, floor in _floors(case.given).items())


def sized_at_floor(case: Case) -> dict[str, Any]:
    loose = ("rate_ttft_rps", "rate_itl_rps", "throughput_rps", "achieved_tps", "achieved_ttft_ms")
    bounds = {key: {"min": 0.98 * case.expected[key], "max": 1.02 * case.expected[key]} for key in loose}
    return {**case.expected, **bounds}


def is_sized_by_three(case: Case) -> bool:
    return case.op == "wva.queue_model_g3" and "target_ttft" in case.given


def sized_by_three(case: Case) -> dict[str, Any]:
    return {**case.expected, "rate_ttft": {"min": case.expected["rate_ttft"]}}


def is_flat_quirk(case: Case) -> bool:
    return case.op == "wva.quirk" and "target_itl" in case.given


def is_overload_quirk(case: Case) -> bool:
    return case.op == "wva.quirk" and "lambda_" in case.given


def _states(given: dict[str, Any]) -> BirthDeath:
    """Solve all states: the package has no use for the fraction of time with running requests."""
    times = LinearTimes(given["alpha"], given["beta"], given["gamma"], given["delta"])
    shape = times, given["n_in"], given["n_out"], given["max_batch"], given["max_queue"]
    return BirthDeath(shape, given["lambda_rps"] / 1_000.0)


def _queue(given: dict[str, Any]) -> EngineQueue:
    times = LinearTimes(given["alpha"], given["beta"], given["gamma"], given["delta"])
    return EngineQueue(times, given["n_in"], given["n_out"], given["max_batch"], given["max_queue"])


def _top(given: dict[str, Any]) -> float:
    """Return the requests that a full batch completes per ms, by the reference's formula."""
    batch, isl = given["max_batch"], given["n_in"]
    prefill_ms = given["gamma"] + given["delta"] * isl * batch if isl else 0.0
    steps = given["n_out"] - 1 if isl or given["n_out"] > 1 else 1
    return float(batch / (prefill_ms + steps * (given["alpha"] + given["beta"] * batch)))


def _is_below_floor(given: dict[str, Any]) -> bool:
    """Return True if one request alone misses a target."""
    return any(given[name] and given[name] < floor * (1.0 - 1e-6) for name, floor in _floors(given).items())


def _floors(given: dict[str, Any]) -> dict[str, float]:
    ttft_ms = given["gamma"] + given["delta"] * given["n_in"] if given["n_in"] else 0.0
    return {"target_ttft_ms": ttft_ms, "target_itl_ms": given["alpha"] + given["beta"]}
