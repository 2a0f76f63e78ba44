"""Series of Prometheus that end: they leave the page of their target soon, and those that go on stay on it."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from loadline.engine_metrics.engine_reader import EngineReader
from loadline.engine_metrics.engine_reading import EngineReading
from loadline.engine_metrics.router_reader import RouterReader
from loadline.engine_metrics.router_tables import ROUTERS
from loadline.sources.prometheus_answer import TargetPage, read_answer

WINDOW_S = 60
INTERVAL_S = 15

Series = tuple[str, dict[str, str], Iterable[float]]
"""A metric, its labels and the times at which it was read."""


def every(interval_s: float, first_s: float, last_s: float) -> list[float]:
    return [first_s + interval_s * count for count in range(1 + int((last_s - first_s) / interval_s))]


def read(now_s: float, *series: tuple[dict[str, str], dict[float, float]]) -> TargetPage:
    """Return the page of the target, from the values that were read in the window before a time."""
    result: list[dict[str, Any]] = []
    for labels, values in series:
        known = [[at_s, str(value)] for at_s, value in values.items() if now_s - WINDOW_S < at_s <= now_s]
        if known:
            result.append({"metric": {"app": "w", **labels}, "values": known})
    answer = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    return read_answer(msgspec.json.encode(answer), "app")["w"]


def counting(now_s: float, *series: Series) -> list[str]:
    """Return the series on the page, such as ``running{zone=a}``."""
    page = read(now_s, *(({"__name__": name, **labels}, dict.fromkeys(times, 1.0)) for name, labels, times in series))
    text = page.text.decode().replace('"', "").replace("app=w,", "").replace("{app=w}", "")
    return sorted(line.split()[0] for line in text.splitlines())


def engine_at(reader: EngineReader, now_s: float, *series: tuple[dict[str, str], dict[float, float]]) -> EngineReading:
    page = read(now_s, *series)
    return reader.read(page.text, page.read_ms)


def vllm(labels: dict[str, str], times: list[float], finished: int, running: int, started_s: float) -> list[Any]:
    """Return the series of a process that finishes a request between two scrapes."""
    values: dict[str, Callable[[float], float]] = {
        "vllm:num_requests_running": lambda _at_s: running,
        "vllm:num_requests_waiting": lambda _at_s: 0,
        "vllm:request_success_total": lambda at_s: finished + at_s // INTERVAL_S,
        "process_start_time_seconds": lambda _at_s: started_s,
    }
    return [({"__name__": name, **labels}, {at: of(at) for at in times}) for name, of in values.items()]


NOBODY: dict[str, str] = {}
BEFORE = every(15, 10, 100)


@pytest.mark.parametrize("first_s", [103.0, 115.0])
def test_other_labels_of_a_running_engine_are_no_traffic_and_no_load(first_s: float) -> None:
    """Somebody labels the pod: its 5,000 requests so far counted as the traffic of an interval, its load twice."""
    reader, arrivals = EngineReader("vllm"), list[int | None]()
    series = [
        *vllm({"instance": "10.0.0.1:8000"}, BEFORE, 5_000, 4, 20.0),
        *vllm({"instance": "10.0.0.1:8000", "zone": "a"}, every(15, first_s, 300), 5_000, 4, 20.0),
    ]
    for now_s in (85.0, 100.0, *every(15, first_s, 200)):
        reading = engine_at(reader, now_s, *series)
        assert reading.requests == 4, now_s
        assert not reading.restarted
        arrivals.append(None if reading.traffic is None else reading.traffic.arrivals)
    assert arrivals[:4] == [None, 1, None, 1]
    assert set(arrivals[4:]) == {1}


def test_other_labels_of_a_router_are_no_traffic() -> None:
    """The 80,000 requests of an endpoint picker counted as the traffic of an interval."""
    reader = RouterReader(ROUTERS["llm-d"], {"m": "m"}, "", lambda _worker: None)
    arrivals = []
    for now_s in every(15, 85, 175):
        series = [
            (
                {"__name__": name, "model_name": "m", **labels},
                {at_s: 80_000 + at_s // 15 if "total" in name else 4 for at_s in times},
            )
            for name in ("llm_d_epp_request_total", "llm_d_epp_request_running")
            for labels, times in ((NOBODY, BEFORE), ({"zone": "a"}, every(15, 115, 300)))
        ]
        page = read(now_s, *series)
        arrivals.append([(one.arrivals, one.in_flight) for one in reader.read(page.text, page.read_ms).values()])
    assert arrivals == [[], [(1, 4)], [], [(1, 4)], [(1, 4)], [(1, 4)], [(1, 4)]]


def test_a_pod_that_was_created_again_has_the_load_of_its_new_process_after_two_missed_scrapes() -> None:
    """A StatefulSet's pod keeps its name: the 30 requests of the dead process ran on for a minute."""
    reader, found = EngineReader("vllm"), []
    series = [
        *vllm({"instance": "10.0.0.1:8000"}, BEFORE, 5_000, 30, 20.0),
        *vllm({"instance": "10.0.0.2:8000"}, every(15, 115, 300), 0, 1, 110.0),
    ]
    for now_s in every(15, 100, 175):
        reading = engine_at(reader, now_s, *series)
        found.append((reading.requests, reading.started_ms, reading.restarted))
    both = (31, 20_000, False)  # a second server of a living pod would look the same until then
    assert found == [(30, 20_000, False), both, both, (1, 110_000, True), *[(1, 110_000, False)] * 2]


def test_what_a_server_has_counted_before_it_is_read_is_no_traffic() -> None:
    """The 80,000 requests in the life of a server, and its 4 running ones, were the arrivals of 7 s."""
    away = [*every(15, 8, 68), *every(15, 173, 400)]
    cases = {
        "read first": (every(15, 173, 400), 100_000),
        "again": (away, 100_000),
        "again, another restarted": (away, 0),
    }
    for case, (scraped_s, finished) in cases.items():
        reader, arrivals = EngineReader("vllm"), []
        first, second = {"instance": "10.0.0.1:8000", "engine": "0"}, {"instance": "10.0.0.1:8001", "engine": "1"}
        series = [
            *vllm(first, every(15, 1, 136), 100_000, 4, 20.0),
            *vllm(first, every(15, 151, 400), finished, 4, 20.0),
            *vllm(second, scraped_s, 80_000, 4, 25.0),
        ]
        for now_s in sorted([*every(15, 136, 211), *every(15, 143, 211)]):
            reading = engine_at(reader, now_s, *series)
            arrivals.append(None if reading.traffic is None else reading.traffic.arrivals)
        assert reading.requests == 8, case
        assert max(filter(None, arrivals)) <= 2, (case, arrivals)
        assert arrivals[5] is None, (case, arrivals)
        assert None not in arrivals[6:], (case, arrivals)


LIVE = every(15, 10, 400)
GONE: Series = ("active", {"worker": "b"}, BEFORE)


def test_a_series_ends_if_others_of_its_scrapes_were_read_three_times_since() -> None:
    """A router has removed a worker: its 12 requests were in flight for a minute."""
    stays: Series = ("active", {"worker": "a"}, LIVE)
    assert counting(144, stays, GONE) == ["active{worker=a}", "active{worker=b}"], "a remote writer may be behind"
    for now_s in every(1, 145, 170):  # also when the window has its last sample only
        assert counting(now_s, stays, GONE) == ["active{worker=a}"], now_s


def test_what_another_process_has_not_counted_yet_ends_after_two_missed_scrapes() -> None:
    old: list[Series] = [(name, {"instance": "1"}, BEFORE) for name in ("running", "finished_total")]
    new: Series = ("running", {"instance": "2"}, every(15, 107, 400))
    assert len(counting(137, *old, new)) == 3, "the interval is 15 s, so it may be late by 37.5 s"
    for now_s in every(1, 152, 170):
        assert counting(now_s, *old, new) == ["running{instance=2}"], now_s


def two_servers(scraped_s: dict[str, list[float]]) -> list[Series]:
    """Return the series of a pod with two servers of data-parallel ranks, by the times at which each was read."""
    return [
        (name, {"instance": f"10.0.0.1:{port}", **labels}, times)
        for port, times in scraped_s.items()
        for name, labels in (("running", {"engine": port}), ("waiting", {"engine": port}), ("start", NOBODY))
    ]


def twice(times: list[float]) -> list[float]:
    return [read_s for at_s in times for read_s in (at_s, at_s + 0.5)]


OTHER = every(15, 17, 400)
ALL_GO_ON: dict[str, list[Series]] = {
    "a scrape that failed once, of one of two pages": [
        ("running", {"instance": "1"}, [at_s for at_s in LIVE if at_s != 115]),
        ("running", {"instance": "2"}, every(15, 24.9, 400)),
    ],
    "a scrape that failed once, of the only page": [
        ("running", NOBODY, [at_s for at_s in LIVE if at_s != 115]),
        ("waiting", NOBODY, [at_s for at_s in LIVE if at_s != 115]),
    ],
    "a scrape that is late": [
        ("running", {"instance": "1"}, [at_s + 9 * (at_s == 115) for at_s in LIVE]),
        ("running", {"instance": "2"}, OTHER),
    ],
    "two jobs that read different metrics at different intervals": [
        ("running", {"job": "fast"}, every(5, 10, 400)),
        ("finished_total", {"job": "slow"}, every(30, 13, 400)),
    ],
    "a sidecar that began after the engine": [
        ("running", NOBODY, LIVE),
        ("process_start_time_seconds", {"instance": "1"}, LIVE),
        ("process_start_time_seconds", {"instance": "2"}, every(15, 107, 400)),
    ],
    "a scrape that a remote writer delivers in parts, one of them not yet": [
        ("running", NOBODY, LIVE),
        ("finished_total", {"reason": "stop"}, [at_s for at_s in LIVE if at_s != 115]),
        ("finished_total", {"reason": "length"}, every(15, 100, 400)),
    ],
    "a remote writer that is 10 s behind with one of its parts": [
        ("running", {"engine": "0"}, every(5, 10, 400)),
        ("running", {"engine": "1"}, [*every(5, 10, 95), *every(5, 110, 400)]),
    ],
    "two servers that write the same series, and two pages": [
        ("running", {"instance": str(offset_s)}, twice(every(15, offset_s, 400))) for offset_s in (1, 8)
    ],
    "two servers that write the same series, and a scrape that is delivered in parts, one of them not yet": [
        ("running", NOBODY, twice(LIVE)),
        ("usage", NOBODY, twice([at_s for at_s in LIVE if at_s != 115])),
    ],
    "a new series that a querier takes from another server than the others": [
        ("running", NOBODY, LIVE),
        ("finished_total", {"reason": "stop"}, LIVE),
        ("finished_total", {"reason": "length"}, every(15, 77, 400)),
    ],
    "times that the program writes": [
        ("running", {"rank": str(rank)}, [at_s + rank for at_s in LIVE]) for rank in range(8)
    ],
    "two servers of a pod that are read every 30 s, and a scrape of one that failed once": two_servers(
        {"8000": every(30, 1, 400), "8001": [at_s for at_s in every(30, 8, 400) if at_s != 128]}
    ),
    "two servers of a pod that are read as seldom as the window is long": two_servers(
        {"8000": every(60, 1, 400), "8001": every(60, 8, 400)}
    ),
    "two servers of a pod, one of which began a scrape ago": two_servers({"8000": LIVE, "8001": every(15, 107, 400)}),
    "two pages with one sample each in the window": [
        ("running", NOBODY, every(50, 10, 400)),
        ("waiting", {"instance": "2"}, every(50, 17, 400)),
    ],
}


@pytest.mark.parametrize("case", ALL_GO_ON)
def test_what_goes_on_stays_on_the_page(case: str) -> None:
    series = ALL_GO_ON[case]
    for now_s in every(1, 108, 200):
        assert len(counting(now_s, *series)) == len(series), now_s


def test_the_newest_of_two_servers_counts_while_the_labels_change() -> None:
    def pair(labels: dict[str, str], first_s: float, last_s: float) -> list[Series]:
        return [
            (name, {"prometheus_replica": replica, **labels}, every(15, first_s + offset_s, last_s + offset_s))
            for replica, offset_s in (("0", 0), ("1", 7))
            for name in ("running", "waiting")
        ]

    series = [*pair(NOBODY, 10, 100), *pair({"zone": "a"}, 115, 400)]
    for now_s in every(1, 90, 200):
        zone = "{zone=a}" if now_s >= 115 else ""
        assert counting(now_s, *series) == [f"running{zone}", f"waiting{zone}"], now_s


def test_a_marker_of_the_end_has_no_value() -> None:
    values = {"running": float("nan"), "waiting": 3.0}  # Prometheus leaves it out, others may answer it
    page = read(115, *(({"__name__": f"vllm:num_requests_{name}"}, {115.0: value}) for name, value in values.items()))
    [load] = EngineReader("vllm").read(page.text, page.read_ms).ranks
    assert (load.running_requests, load.waiting_requests) == (None, 3)
