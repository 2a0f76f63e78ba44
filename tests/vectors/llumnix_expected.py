"""Expected outputs of Llumnix's policy cycles, computed from the cases alone, for those where the original differs."""

from collections.abc import Iterable
from typing import Any, Final

from tests.vectors.cases import Case
from tests.vectors.llumnix_world import BATCH, QUEUED, REQUESTS, STALENESS_S, TOKENS, TOTAL, USED, scale

Instance = dict[str, Any]
Taken = Iterable[tuple[str, str, int]]
"""Source, destination, requests."""

DISPATCH, TPOT_SLO_MS, LEAST_TOKENS, GAP = 0.85, 50.0, 1_024.0, 0.7
PACKING: Final = ("binpacking_mitigation", "binpacking_consolidation")


# -- failed workers and their replacements -----------------------------------------------------------------------------


def _kind(one: Instance) -> str:
    return str(one.get("infer_type", "decode"))


def _status(one: Instance, key: str) -> int:
    return int(one.get("status", {}).get(key, 0))


def _silent_ms(given: dict[str, Any]) -> int:
    return 1_000 * int(given.get("config", {}).get("staleness_seconds", STALENESS_S))


def _fails(one: Instance, given: dict[str, Any]) -> bool:
    silent_ms = max(_silent_ms(given), 100)
    return not one.get("schedulable", True) or one.get("age_ms", 0) >= silent_ms


def failing(given: dict[str, Any]) -> list[str]:
    """Return the failed instances and those that share a failed node or unit; without a name, alone."""
    domain, instances = given.get("config", {}).get("failover_domain", "instance-unit"), given["instances"]
    found = {one["id"] for one in instances if _fails(one, given)}
    if domain in {"node", "node-unit"}:
        nodes = {one.get("node") for one in instances if one["id"] in found} - {None, ""}
        found |= {one["id"] for one in instances if one.get("node") in nodes}
    if domain in {"instance-unit", "node-unit"}:
        ranks = [one for one in instances if one.get("dp", 1) > 1]
        units = {one.get("unit") for one in ranks if one["id"] in found} - {None, ""}
        found |= {one["id"] for one in ranks if one.get("unit") in units}
    return sorted(found)


def _each(one: Instance) -> float:
    return max((_status(one, USED) + _status(one, QUEUED)) / REQUESTS, 1.0)


def _room(one: Instance) -> float:
    return float(_status(one, TOTAL) - _status(one, USED) - _status(one, QUEUED))


def _sides(given: dict[str, Any]) -> list[tuple[list[Instance], list[Instance]]]:
    """Return the sources and the possible destinations of each type that is evacuated."""
    failed = failing(given)
    kinds = [name.removesuffix("_failover") for name in _policies(given) if name.endswith("_failover")]
    of_kind = [[one for one in given["instances"] if _kind(one) == kind] for kind in kinds]
    return [
        ([one for one in many if one["id"] in failed], [one for one in many if one["id"] not in failed])
        for many in of_kind
    ]


def _policies(given: dict[str, Any]) -> list[str]:
    return str(given.get("config", {}).get("policies", "decode_failover")).split(",")


def violations(given: dict[str, Any], taken: Taken) -> list[str]:
    """Return the violations of an evacuation: unexpected or overfull workers, and requests left despite room.

    Each source has ``REQUESTS`` requests.
    """
    found: list[str] = []
    moved = list(taken)
    for givers, takers in _sides(given):
        sources, destinations = {one["id"]: one for one in givers}, {one["id"]: one for one in takers}
        left, room = dict.fromkeys(sources, REQUESTS), {name: _room(one) for name, one in destinations.items()}
        for source, destination, requests in moved:
            if source in sources and destination in destinations:
                left[source] -= requests
                room[destination] -= requests * _each(sources[source])
        found += [f"{name} gave more than it had" for name, count in left.items() if count < 0]
        found += [f"{name} is over full" for name, tokens in room.items() if tokens < 0.0 and _takes(name, moved)]
        behind = [name for name, count in left.items() if count > 0]
        # Room is known in whole tokens, so up to one token more may remain.
        found += [
            f"{name} stays though {other} has room"
            for name in behind
            for other, tokens in room.items()
            if tokens >= _each(sources[name]) + 1.0
        ]
    known = {(one["id"], other["id"]) for givers, takers in _sides(given) for one in givers for other in takers}
    return [*found, *(f"{one} to {other}" for one, other, _ in moved if (one, other) not in known)]


def _takes(name: str, moved: list[tuple[str, str, int]]) -> bool:
    return any(destination == name for _, destination, _ in moved)


# -- failover ----------------------------------------------------------------------------------------------------------


def _evacuates(case: Case) -> bool:
    return case.op == "llumnix.policy_cycle" and any(
        one.endswith("_failover") for one in _policies(case.given["given"])
    )


def _is_evacuated(case: Case) -> bool:
    """Return True if an evacuation migrates requests in the original or here."""
    return _evacuates(case) and bool(evacuated(case)["destinations"] or _pairs(case))


def has_no_name(case: Case) -> bool:
    """Return True if a failed instance names no node or unit of its failure domain."""
    if not _is_evacuated(case):
        return False
    given = case.given["given"]
    domain, failed = (
        given["config"].get("failover_domain", ""),
        [one for one in given["instances"] if _fails(one, given)],
    )
    by_unit = any(not one.get("unit") and one.get("dp", 1) > 1 for one in failed)
    return ("node" in domain and any(not one.get("node") for one in failed)) or ("unit" in domain and by_unit)


def is_silent_for_part_of_a_second(case: Case) -> bool:
    """Return True if an instance exceeds the allowed silence by less than a second."""
    if not _is_evacuated(case):
        return False
    after_ms = _silent_ms(case.given["given"])
    return any(after_ms <= one.get("age_ms", 0) < after_ms + 1_000 for one in case.given["given"]["instances"])


def has_no_room(case: Case) -> bool:
    """Return True if the original migrates requests although no destination has room."""
    return _evacuates(case) and bool(_pairs(case)) and not evacuated(case)["destinations"]


def is_spread(case: Case) -> bool:
    """Return True if requests are evacuated."""
    return _is_evacuated(case)


def evacuated(case: Case) -> dict[str, Any]:
    """Return the expected evacuation: all with room receive; the sources are known if there is room for all."""
    given = case.given["given"]
    sources: list[str] = []
    destinations: list[str] = []
    for givers, takers in _sides(given):
        lengths = [_each(one) for one in givers]
        if not lengths:
            continue
        destinations += [one["id"] for one in takers if _room(one) >= min(lengths)]
        places = sum(int(max(_room(one), 0.0) // max(lengths)) for one in takers)
        sources += [one["id"] for one in givers] if places >= REQUESTS * len(givers) else []
    expected: dict[str, Any] = {"destinations": sorted(destinations), "wrong": []}
    expected |= {"rules": ["NUM_REQ LR"] if destinations else []}
    expected |= {"sources": sorted(sources)} if sources else {}
    return expected | {key: one for key, one in case.expected.items() if key == "pairs_one_of"}


# -- amounts -----------------------------------------------------------------------------------------------------------


def _pairs(case: Case) -> list[dict[str, str]]:
    found: list[dict[str, str]] = case.expected.get("pairs") or case.expected.get("pairs_unordered") or []
    return found or next((many for many in case.expected.get("pairs_one_of", ()) if many), [])


def crosses_types(case: Case) -> bool:
    """Return True if a request migrates between workers of different types."""
    if case.op != "llumnix.policy_cycle":
        return False
    kinds = {one["id"]: _kind(one) for one in case.given["given"]["instances"]}
    return any(kinds[pair["src"]] != kinds[pair["dst"]] for pair in _pairs(case))


def is_below_the_threshold_in_a_unit(case: Case) -> bool:
    """Return True if load is balanced within units and no source reaches the load threshold."""
    if case.op != "llumnix.policy_cycle" or case.given["given"].get("config", {}).get("scope") != "unit":
        return False
    threshold = case.given["given"]["config"].get("decode_load_threshold", 1.0)
    sources = {pair["src"] for pair in _pairs(case)}
    workers = [one for one in case.given["given"]["instances"] if one["id"] in sources]
    return bool(workers) and all(1.0 - _room(one) / _status(one, TOTAL) < threshold for one in workers)


def is_to_itself(case: Case) -> bool:
    """Return True if a worker is its own destination."""
    return case.op == "llumnix.policy_cycle" and any(pair["src"] == pair["dst"] for pair in _pairs(case))


def is_a_chain(case: Case) -> bool:
    """Return True if a worker is both a source and a destination."""
    takers = {pair["dst"] for pair in _pairs(case)} if case.op == "llumnix.policy_cycle" else set()
    return any(pair["src"] in takers for pair in _pairs(case)) if takers else False


def without_chain(case: Case) -> dict[str, Any]:
    """Return the pairs that remain if each worker is only a source or only a destination, by order."""
    kept: list[dict[str, str]] = []
    for pair in _pairs(case):
        if pair["src"] not in {one["dst"] for one in kept} and pair["dst"] not in {one["src"] for one in kept}:
            kept.append(pair)
    return {**case.expected, "pairs": kept, "request_selection": _selection(case, kept)}


def is_sized(case: Case) -> bool:
    """Return True for a migration by load or time per token, whose amount is computed here."""
    return case.op == "llumnix.policy_cycle" and "request_selection" in case.expected and not _evacuates(case)


def sized(case: Case) -> dict[str, Any]:
    """Return the same pairs with computed amounts; of several random choices of the original, the first."""
    return {**case.expected, "request_selection": _selection(case, _pairs(case))}


def _selection(case: Case, pairs: list[dict[str, str]]) -> list[list[Any]]:
    given = case.given["given"]
    known = {one["id"]: one for one in given["instances"]}
    batches = {name: (_status(one, BATCH), _status(one, TOKENS)) for name, one in known.items()}
    found: set[tuple[str, str, float]] = set()
    for pair in pairs:
        source, destination = pair["src"], pair["dst"]
        if pair["policy"] in PACKING:
            count, tokens = _packed(given, pair["policy"], batches[source], batches[destination])
            batches[source] = batches[source][0] - count, batches[source][1] - tokens
            batches[destination] = batches[destination][0] + count, batches[destination][1] + tokens
            found.add(("NUM_REQ", "LCR", float(count)))
        else:
            found.add(_balanced(given, known[source], known[destination]))
    return [list(one) for one in sorted(found)]


def _balanced(given: dict[str, Any], source: Instance, destination: Instance) -> tuple[str, str, float]:
    """Return half of the load gap, limited so that the destination stays below the threshold.

    The minimum amount may exceed half the gap, as long as the reversed gap stays below the balance threshold.
    """
    config, times = given.get("config", {}), scale(given["instances"])
    threshold = config.get("decode_load_threshold", 1.0)
    most = threshold if 0.0 < threshold < 1.0 and config.get("scope", "cluster") == "cluster" else 1.0
    total = float(times * _status(destination, TOTAL))
    room = most * total - times * (_status(destination, USED) + _status(destination, QUEUED))
    apart = times * (_room(destination) - _room(source))
    used = times * (_status(source, USED) + _status(source, QUEUED))
    each = max(used, _status(source, TOKENS)) / source.get("status", {}).get(BATCH, REQUESTS)
    least_apart = times * config.get("load_balance_threshold", GAP) * _status(source, TOTAL)
    most = (apart + min(least_apart, apart)) / 2.0 - each
    return "TOKEN", "SR", min(max(apart / 2.0, min(LEAST_TOKENS, most)), room)


def _packed(
    given: dict[str, Any], policy: str, source: tuple[int, int], destination: tuple[int, int]
) -> tuple[int, int]:
    """Return requests and tokens: as many as bring the source within its objective and keep the destination in it."""
    within_ms = given.get("config", {}).get("dispatch", DISPATCH) * TPOT_SLO_MS
    each = source[1] // source[0]
    counts = range(1, source[0] + 1)
    takes = max((n for n in counts if _tpot_ms(destination[0] + n, destination[1] + each * n) < within_ms), default=0)
    enough = (n for n in counts if _tpot_ms(source[0] - n, source[1] - each * n) < within_ms)
    gives = next(enough, source[0]) if policy == "binpacking_mitigation" else source[0]
    count = min(gives, takes)
    return count, count * each


def _tpot_ms(batch: int, tokens: int) -> float:
    """Return the time per token by the formula of the profile ``T1``."""
    return 10.0 + 0.1 * (batch + 1) + 1e-5 * tokens
