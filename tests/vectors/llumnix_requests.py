"""Answers to Llumnix's cases of the selection of an engine's requests, and intended deviations."""

from typing import Any

from loadline.core.migration.requests import MigratableRequest, select_requests
from tests.vectors.answering import Answer, only
from tests.vectors.cases import Case


def request_select(case: dict[str, Any]) -> dict[str, list[str]]:
    given, queue = case["given"], _queue(case)
    only(given, "rule", "order", "value", "queue")
    running = [MigratableRequest(name, prompt, output) for name, prompt, output in queue["running"]]
    waiting = [MigratableRequest(name, prompt, output, waiting=True) for name, prompt, output in queue["waiting"]]
    chosen = select_requests(
        [*running, *waiting],
        given["rule"],
        given["order"],
        given["value"],
        requests_max=len(running) + len(waiting),
        tokens_max=None,
        hops_max=1,
        kv_tokens_total=queue["kv_capacity_tokens"],
    )
    return {"selected": [one.request_id for one in chosen]}


def _queue(case: dict[str, Any]) -> dict[str, Any]:
    queue: dict[str, Any] = case["shared"]["meta"]["queues"][case["given"]["queue"]]
    return queue


def _lengths(case: Case) -> dict[str, int]:
    queue = _queue(case.given)
    return {name: prompt + output for name, prompt, output in (*queue["running"], *queue["waiting"])}


def _budget_tokens(case: Case) -> float | None:
    """Return the tokens to migrate; None if the case counts requests or is of another kind."""
    if case.op != "llumnix.request_select" or case.given["given"]["rule"] == "NUM_REQ":
        return None
    value: float = case.given["given"]["value"]
    ratio = case.given["given"]["rule"] == "RATIO"
    return value * _queue(case.given)["kv_capacity_tokens"] if ratio else value


def overshoots(case: Case) -> bool:
    """Return True if the original selects more tokens than requested."""
    budget = _budget_tokens(case)
    if budget is None:
        return False
    lengths = _lengths(case)
    return sum(lengths[name] for name in case.expected["selected"]) > budget


def within_budget(case: Case) -> dict[str, list[str]]:
    """Return the original's selection without the last request, plus later ones that fit into the remaining tokens."""
    budget, lengths = _budget_tokens(case) or 0.0, _lengths(case)
    *kept, last = case.expected["selected"]
    order = _in_order(case)
    left = budget - sum(lengths[name] for name in kept)
    for name in order[order.index(last) + 1 :]:
        if lengths[name] <= left:
            kept.append(name)
            left -= lengths[name]
    return {"selected": kept}


def finds_none(case: Case) -> bool:
    """Return True if every request has more tokens than requested, so that the original selects none."""
    budget = _budget_tokens(case)
    return budget is not None and budget > 0 and not case.expected["selected"] and bool(_in_order(case))


def first_alone(case: Case) -> dict[str, list[str]]:
    """Return the first request of the order alone."""
    return {"selected": _in_order(case)[:1]}


def _in_order(case: Case) -> list[str]:
    queue, lengths = _queue(case.given), _lengths(case)
    running = [name for name, _, output in queue["running"] if output]
    waiting = [name for name, _, _ in queue["waiting"]]
    shortest = sorted(running, key=lambda name: lengths[name])
    return {
        "LCR": running[::-1],
        "FCR": running,
        "LR": sorted(running, key=lambda name: -lengths[name]),
        "SR": shortest,
        "FCW": waiting,
        "FCWSR": waiting + shortest,
    }[case.given["given"]["order"]]


ANSWERS: dict[str, Answer] = {"llumnix.request_select": request_select}
