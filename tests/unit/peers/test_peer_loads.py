"""Loads of the comparison with peers: rates, recorded traces, and the file for NVIDIA's simulator."""

import json
from itertools import chain, pairwise
from pathlib import Path

import pytest

from loadline.traces import Arrival, read_trace
from tools.bench.peers.loads import ROOT, Phase, Row, Window, write_trace
from tools.bench.peers.rows import ROWS


def test_requests_arrive_at_the_rate_of_their_phase() -> None:
    row = Row("", (Phase(100, 20, 300, 30), Phase(50, 0), Phase(100, 60)))
    arrivals = row.arrivals()
    assert arrivals == row.arrivals()
    assert all(one.arrival_s <= other.arrival_s for one, other in pairwise(arrivals))
    first, silence, last = (
        [one for one in arrivals if begin <= one.arrival_s < end] for begin, end in ((0, 100), (100, 150), (150, 250))
    )
    assert len(first) == pytest.approx(2_000, rel=0.1)
    assert not silence
    assert len(last) == pytest.approx(6_000, rel=0.1)
    assert {(one.isl_tokens, one.osl_tokens) for one in first} == {(300, 30)}
    assert {(one.isl_tokens, one.osl_tokens) for one in last} == {(1_000, 100)}


def test_a_window_takes_its_part_of_a_recorded_trace_and_scales_it() -> None:
    path = "agent/loadline/demo/data/azure2023_conv.csv.gz"
    whole = [one.arrival_s for one in read_trace(ROOT / path).arrivals]
    inside = sum(600 <= at_s < 660 for at_s in whole)
    arrivals = Row("", Window(path, 60, 3, 600)).arrivals()
    assert len(arrivals) == pytest.approx(3 * inside, rel=0.1)
    assert 0 <= arrivals[0].arrival_s < arrivals[-1].arrival_s <= 65


def test_rows_are_of_all_kinds_and_their_traces_are_in_the_repository() -> None:
    windows = [row.load for row in ROWS.values() if isinstance(row.load, Window)]
    assert all((ROOT / window.path).is_file() for window in windows)
    assert len({window.path for window in windows}) == 3
    assert {row.roles for row in ROWS.values()} == {("aggregated",), ("prefill", "decode")}


def test_the_file_has_all_requests_and_no_common_prompts(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write_trace(path, [Arrival(0.25, 512, 5), Arrival(1.0, 513, 7), Arrival(1.5, 1, 1)])
    first, second, third = (json.loads(line) for line in path.read_text("ascii").splitlines())
    assert first == {"timestamp": 250, "input_length": 512, "output_length": 5, "hash_ids": [0]}
    assert (second["timestamp"], second["hash_ids"]) == (1_000, [1, 2])
    blocks = list(chain(first["hash_ids"], second["hash_ids"], third["hash_ids"]))
    assert len(set(blocks)) == len(blocks)
    assert [one.isl_tokens for one in read_trace(path).arrivals] == [512, 513, 1]
