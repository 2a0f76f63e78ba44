"""Intended deviations from the originals: rules that select cases, give a reason and expect another output.

A rule never looks at the id of a case. It returns an expected output, so that deviations are tested as well.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from tests.vectors import llumnix_differences, llumnix_expected, llumnix_requests, wva_queueing, wva_saturation
from tests.vectors.cases import Case
from tests.vectors.dynamo_threshold import WHY


class Deviation(Struct, frozen=True):
    """Rule for a deviation: its reason, the cases that it applies to, and their expected output."""

    reason: str
    applies: Callable[[Case], bool]
    expects: Callable[[Case], Any]


def rule_for(case: Case) -> Deviation | None:
    """Return the first rule that applies to a case."""
    return next((rule for rule in RULES if rule.applies(case)), None)


def _workers_changed(case: Case) -> list[str]:
    return [role for role in "pd" if case.given.get(f"{role}_at_start", case.given[role]) != case.given[role]]


def _own_interval(case: Case) -> dict[str, Any]:
    return {role: case.given[role] for role in _workers_changed(case)}


def _frees_and_spends(case: Case) -> bool:
    """Return True if one role shrinks and the other one grows by the GPUs that this frees."""
    given, out = case.given, case.expected
    if case.op != "v0.step" or "max_gpu" not in given or not {"p", "d"} <= out.keys():
        return False
    steps = {role: out[role] - given[role] for role in "pd"}
    width = {role: given.get(f"{role}_gpu", 1) for role in "pd"}
    used = sum(given[role] * width[role] for role in "pd")
    grown = sum(max(0, steps[role]) * width[role] for role in "pd")
    return bool(min(steps.values()) < 0 < grown and used + grown > given["max_gpu"])


def _other_words(case: Case) -> bool:
    return case.op == "v0.step" and bool(
        set(case.expected.get("why", ())) - set(WHY.values()) or case.expected.keys() - {"p", "d", "trend", "why"}
    )


def _best_measured(case: Case) -> dict[str, Any]:
    original = case.expected["best"]
    best = {
        "tok_s_gpu": {"min": 0.95 * original["tok_s_gpu"], "max": 1.1 * original["tok_s_gpu"]},
        "itl_ms": {"gt": 0, "max": case.given["itl"]},
        "kv": {"min": 0, "max": 1},
    }
    return {**case.expected, "best": best}


def _starts_idle_or_has_holes(case: Case) -> bool:
    series = case.given.get("series") or [1]
    return any(value is None for value in series) or (series[0] == 0 and case.given.get("predictor") != "constant")


def _never_negative(case: Case) -> dict[str, Any]:
    bounds = [{"min": 0} if value < 0 else value for value in case.expected["predictions"]]
    return {**case.expected, "predictions": bounds}


RULES = (
    Deviation(
        "GPUs of workers that leave are occupied until they have left: the original gives them away in the same pass",
        _frees_and_spends,
        lambda case: {role: min(case.given[role], case.expected[role]) for role in "pd"},
    ),
    Deviation(
        "the interval of the threshold planner is each pool's own: in the original a change of one role's workers "
        "stopped both, so one worker that flaps would stop the model for ever",
        lambda case: case.op == "v0.step" and bool(_workers_changed(case)),
        _own_interval,
    ),
    Deviation(
        "why nothing is done is said in the product's own closed list of words, and the grace is a time, no counter",
        _other_words,
        lambda case: {key: case.expected[key] for key in ("p", "d", "trend") if key in case.expected},
    ),
    Deviation(
        "the best throughput is the highest within the objective, read between the two contexts around the asked one: "
        "the original takes the fullest batch even where an emptier one serves more, and beyond the fullest measured "
        "batch that of whatever point lies nearest",
        lambda case: case.op == "v1.interp" and bool(case.expected.get("best")),
        _best_measured,
    ),
    Deviation(
        "why a total is out of bounds is said by a code and numbers, not by a sentence of the arithmetic",
        lambda case: case.given.get("fn") == "bounds_for_total" and case.expected[0] is False,
        lambda _: [False, ""],
    ),
    Deviation(
        "an objective that no batch meets is declared infeasible: the original silently takes the capacity at another "
        "latency",
        lambda case: case.op == "v3.capacity" and case.expected.get("eligible") is False,
        lambda _: {"rps": None, "eligible": False},
    ),
    Deviation(
        "there is no negative load, whatever the trend: the original's filter of 1.0 forecast it",
        lambda case: case.op == "v1.predict" and any(value < 0 for value in case.expected.get("predictions", ())),
        _never_negative,
    ),
    Deviation(
        "an idle interval is a value of 0 and an unknown one is no value: the original takes unknown for 0, and leaves "
        "out zeros at the beginning",
        lambda case: case.op.endswith(".predict") and _starts_idle_or_has_holes(case),
        lambda _: {"last": {"min": 0}},
    ),
    Deviation(
        "a pool whose need is unknown holds alone: in the original it holds the other one too",
        lambda case: case.op == "v3.throughput" and sum(need is None for need in case.given.get("raw", ())) == 1,
        lambda _: {"throughput": "model_not_ready"},
    ),
    Deviation(
        "more requests than an engine can serve, and an engine with a single place, have an answer",
        wva_queueing.is_refused,
        wva_queueing.answered,
    ),
    Deviation(
        "an engine with a single place has rates that it can be sized for",
        wva_queueing.has_one_place,
        wva_queueing.rates_of_one_place,
    ),
    Deviation(
        "without prompts there is no prefill: the original takes its fixed part off the batch all the same",
        wva_queueing.is_without_prompts,
        wva_queueing.batch_of_service,
    ),
    Deviation(
        "an ITL that is the same at every rate bounds none: the original gives the least rate, or says infeasible",
        wva_queueing.is_flat,
        wva_queueing.sized_flat,
    ),
    Deviation(
        "without prompts the ITL counts the whole batch, so fewer requests keep it",
        wva_queueing.is_sized_without_prompts,
        wva_queueing.sized_without_prompts,
    ),
    Deviation(
        "the original stops within a millionth of the target, which so close to the floor is up to 2 % of the rate",
        wva_queueing.is_at_floor,
        wva_queueing.sized_at_floor,
    ),
    Deviation(
        "the first token comes from the prefill, and does not wait for an iteration more",
        wva_queueing.is_sized_by_three,
        wva_queueing.sized_by_three,
    ),
    Deviation(
        "a flat curve is feasible up to saturation",
        wva_queueing.is_flat_quirk,
        lambda case: {"bound": "saturation", "itl_ms": case.given["alpha"]},
    ),
    Deviation(
        "overload has an answer",
        wva_queueing.is_overload_quirk,
        lambda _: {"rps": {"gt": 50.9}, "most": {"max": 50.93}, "ttft_ms": {"min": 12_000, "max": 14_000}},
    ),
    Deviation(
        "a queue at a nearly empty cache waits for prefill and says nothing of what a worker can hold: the original "
        "learns a capacity from it, once of 16 % of a cache",
        wva_saturation.learns_at_low_usage,
        wva_saturation.bound_by_memory,
    ),
    Deviation(
        "a worker counts once, whatever its ranks: what its ranks say is summed up in it",
        wva_saturation.has_ranks,
        wva_saturation.counts_workers,
    ),
    Deviation(
        "who has no count has no opinion: the original reads it as 0, and so as a wish to shrink",
        wva_saturation.lacks_a_target,
        wva_saturation.without_arbitration,
    ),
    Deviation(
        "a move takes no more tokens than were asked for: the original's last request may be as large as all of them",
        llumnix_requests.overshoots,
        llumnix_requests.within_budget,
    ),
    Deviation(
        "where every request is longer than what was asked for, the first moves alone: in the original none ever does",
        llumnix_requests.finds_none,
        llumnix_requests.first_alone,
    ),
    Deviation(
        "nobody has room for a request, so none is sent: the original fills the last healthy worker over its cache",
        llumnix_expected.has_no_room,
        llumnix_expected.evacuated,
    ),
    Deviation(
        "who fails and names no node or unit fails alone, with an alarm: in the original it takes all others that name "
        "none with it, or nothing is done at all",
        llumnix_expected.has_no_name,
        llumnix_expected.evacuated,
    ),
    Deviation(
        "silence is counted in ms: the original compares whole seconds",
        llumnix_expected.is_silent_for_part_of_a_second,
        llumnix_expected.evacuated,
    ),
    Deviation(
        "the requests of a failing worker go to all that have slots and room, as many as these have: in the original "
        "all go to one",
        llumnix_expected.is_spread,
        llumnix_expected.evacuated,
    ),
    Deviation(
        "requests move between workers of one type: in the original bin packing sends decode to prefill",
        llumnix_expected.crosses_types,
        lambda case: {**case.expected, "pairs": [], "request_selection": []},
    ),
    Deviation(
        "the load threshold applies within units as well: in the original it is dropped, and half-empty workers "
        "exchange requests",
        llumnix_expected.is_below_the_threshold_in_a_unit,
        lambda case: {**case.expected, "pairs": [], "request_selection": []},
    ),
    Deviation(
        "no worker gives to itself",
        llumnix_expected.is_to_itself,
        lambda case: {**case.expected, "pairs": [], "request_selection": []},
    ),
    Deviation(
        "no worker gives away while it takes in: it would send on what has just come",
        llumnix_expected.is_a_chain,
        llumnix_expected.without_chain,
    ),
    Deviation(
        "a move takes what it is for: half of what two workers are apart, or as many requests as bring the one within "
        "its time per token and leave the other within it. In the original it is the same whatever the loads are",
        llumnix_expected.is_sized,
        llumnix_expected.sized,
    ),
    Deviation(
        "of an engine without a cache nothing is known: in the original it is the fullest of all",
        llumnix_differences.has_no_cache,
        lambda _: {"value": None},
    ),
    Deviation(
        "where nobody passes nothing moves: there is no second pass that leaves out filters",
        llumnix_differences.falls_back,
        llumnix_differences.without_fallback,
    ),
    Deviation(
        "nobody waits for an answer: in the original all wait for the slowest",
        llumnix_differences.is_waited_for,
        lambda _: {"cycle_blocked_s": 0.0},
    ),
    Deviation(
        "what was not answered may have begun all the same, and is called so",
        llumnix_differences.is_unanswered,
        lambda case: {**case.expected, "error": "unanswered"},
    ),
    Deviation(
        "workers answer in a closed list of words, and nobody answers what is no command",
        llumnix_differences.has_a_code,
        llumnix_differences.in_words,
    ),
)
