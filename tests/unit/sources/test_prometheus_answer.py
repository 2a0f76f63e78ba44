"""Answers of Prometheus: the pages of targets in them, and what is refused."""

import random
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from loadline.engine_metrics.exposition import labels_of, read_exposition
from loadline.sources.prometheus_answer import AnswerRefused, query, read_answer

METRIC = "vllm:num_requests_running"


def answer(*series: tuple[dict[str, str], list[tuple[float, str]]], **fields: Any) -> bytes:
    result: list[Any] = [{"metric": {"__name__": METRIC, **labels}, "values": values} for labels, values in series]
    whole: dict[str, Any] = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    return msgspec.json.encode({**whole, **fields})


def test_a_query_names_all_metrics_the_selector_and_the_age() -> None:
    assert query(["b", "a:c"], "", 60) == '{__name__=~"a:c|b"}[60s]'
    assert query(["a"], ' {job="x",pod=~"y.*"} ', 5) == '{__name__=~"a",job="x",pod=~"y.*"}[5s]'


def test_the_newest_value_of_each_series_is_on_the_page_of_its_target() -> None:
    data = answer(
        ({"pod": "a", "__name__": "process_start_time_seconds"}, [(25.0, "4")]),
        ({"pod": "a", "engine": "0"}, [(10.0, "1"), (25.5, "2")]),
        ({"pod": "a", "engine": "1"}, [(25.4, "7")]),
        ({"pod": "b"}, [(11.0, "3")]),
        ({"instance": "no pod"}, [(11.0, "9")]),
        ({"pod": "new\nline"}, [(11.0, "9")]),
        ({"pod": "a\n"}, [(11.0, "9")]),
        ({"pod": "x" * 101}, [(11.0, "9")]),
    )
    found = read_answer(data, "pod")
    assert {name: page.read_ms for name, page in found.items()} == {"a": 25_500, "b": 11_000}
    series = read_exposition(found["a"].text, frozenset([METRIC])).series[METRIC]
    assert {labels_of(written)["engine"]: value for written, value in series.items()} == {"0": 2.0, "1": 7.0}


def test_a_page_is_as_old_as_the_server_of_its_target_that_was_read_first() -> None:
    data = answer(
        ({"pod": "a", "instance": "a:1"}, [(25.5, "2")]),
        ({"pod": "a", "instance": "a:1", "le": "5"}, [(10.5, "2")]),
        ({"pod": "a", "instance": "a:2"}, [(20.4, "7")]),
        ({"pod": "b", "instance": "b"}, [(25.5, "2")]),
        ({"pod": "b", "instance": "b", "__name__": "read_less_often"}, [(10.5, "2")]),
    )
    pages = read_answer(data, "pod")
    assert {name: (page.oldest_ms, page.read_ms) for name, page in pages.items()} == {
        "a": (20_400, 25_500),
        "b": (25_500, 25_500),
    }


def lines_of(data: bytes, **options: frozenset[str]) -> list[tuple[dict[str, str], float]]:
    """Return the labels without the target's, and the values, of the only page."""
    [page] = read_answer(data, "pod", **options).values()
    series = read_exposition(page.text, frozenset([METRIC])).series[METRIC]
    return [({**labels_of(written), "pod": ""}, value) for written, value in series.items()]


def test_of_one_target_that_two_jobs_or_servers_read_the_newest_sample_counts() -> None:
    monitors = {"job": "ns/pods", "endpoint": "http"}, {"job": "vllm", "service": "vllm", "endpoint": "metrics"}
    pairs = {"prometheus": "ns/a", "prometheus_replica": "a-0"}, {"prometheus": "ns/b", "receive_replica": "1"}
    for one, other in (monitors, pairs):
        series = [({"pod": "a", "engine": engine, **one}, [(10.0, "5")]) for engine in "01"]
        series += [({**other, "engine": engine, "pod": "a"}, [(9.0, "4"), (11.0, "6")]) for engine in "01"]
        for order in (series, series[::-1]):
            found = sorted(lines_of(answer(*order)), key=str)
            assert found == [({"engine": "0", "pod": ""}, 6.0), ({"engine": "1", "pod": ""}, 6.0)]
            assert read_answer(answer(*order), "pod")["a"].read_ms == 11_000


def test_series_of_two_instances_are_no_copies() -> None:
    series = [({"pod": "a", "job": "x", "instance": f"10.0.0.7:{port}"}, [(10.0, "5")]) for port in (8000, 8001)]
    assert [value for _, value in lines_of(answer(*series))] == [5.0, 5.0]


def test_a_label_that_routers_write_too_is_a_readers_if_theirs_was_renamed() -> None:
    own = frozenset(("endpoint",))
    chats = [({"pod": "a", "endpoint": name}, [(10.0, "5")]) for name in ("chat", "completions")]
    assert len(lines_of(answer(*chats), own=own)) == 2
    renamed = [({**labels, "exported_endpoint": "chat"}, values) for labels, values in chats]
    assert lines_of(answer(*renamed), own=own) == [({"exported_endpoint": "chat", "pod": ""}, 5.0)]


def test_labels_with_quotes_and_newlines_stay_labels() -> None:
    value = 'a"} 99\nvllm:num_requests_running{x="\\'
    page = read_answer(answer(({"pod": "a", "model_name": value, 'bad"': "x"}, [(1.0, "5")])), "pod")["a"]
    series = read_exposition(page.text, frozenset([METRIC])).series[METRIC]
    ((written, number),) = series.items()
    assert (labels_of(written), number) == ({"pod": "a", "model_name": value}, 5.0)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not_prometheus"),
        (b"<html>", "not_prometheus"),
        (b"[" * 100_000, "not_prometheus"),
        (b'{"status": 1}', "not_prometheus"),
        (answer(({"pod": "a"}, [])), "not_prometheus"),
        (answer(({"pod": "a"}, [(1.0, 5)])), "not_prometheus"),  # type: ignore[list-item]
        (answer(({"pod": "a"}, [(-1.0, "5")])), "not_prometheus"),
        (answer(data={"resultType": "vector", "result": []}), "not_prometheus"),
        (answer()[:-9], "not_prometheus"),
        (b'{"status":"error","errorType":"bad_data","error":"parse error"}', "query_failed"),
        (b'{"status":"success"}', "query_failed"),
        (answer(({"pod": "a"}, [(1.0, "5")]), warnings=["store 2 did not answer"]), "partial"),
    ],
)
def test_what_is_no_whole_answer_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(AnswerRefused) as refused:
        read_answer(data, "pod")
    assert refused.value.reason == reason


def test_any_bytes_give_pages_or_a_refusal() -> None:
    noise, good = random.Random(5), answer(({"pod": "a", "engine": "0"}, [(10.0, "1"), (25.5, "2")]))
    for _ in range(2_000):
        damaged = bytearray(good)
        damaged[noise.randrange(len(damaged))] = noise.randrange(256)
        with suppress(AnswerRefused):
            for page in read_answer(bytes(damaged), "pod").values():
                assert page.text.endswith(b"\n")
