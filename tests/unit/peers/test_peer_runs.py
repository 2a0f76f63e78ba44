"""Runs beside peers: the smallest fixed fleet, stored results, tables, and NVIDIA's simulator if it is set up."""

import sys
from pathlib import Path

import pytest

from loadline.errors import LoadlineError
from tools.bench.peers.__main__ import main
from tools.bench.peers.lab import FOLDER, Lab
from tools.bench.peers.lines import LineProcess
from tools.bench.peers.loads import Phase, Row
from tools.bench.peers.results import Results, key_of_run
from tools.bench.peers.rows import ROWS
from tools.bench.peers.runs import DYNAMO, FIXED, Fleet, Outcome, Result, row_runs, smallest_fleet
from tools.bench.peers.tables import result_rows

FOUND = {
    "calm": {
        FIXED: Result("", 100, 100, 2.0, (3, 1), 100),
        "dynamo": Result("", 100, 50, 1.0),
    },
    "busy": {
        FIXED: Result("", 100, 100, 1.0, (2,), 100),
        "dynamo": Result("", 100, 100, 2.0),
    },
}


def searched(*needed: int) -> tuple[Outcome, Fleet, Outcome]:
    """Search among fleets that miss a tenth of the requests for each role with too few workers."""

    def run(fleet: Fleet) -> Outcome:
        short = sum(count < enough for count, enough in zip(fleet, needed, strict=True))
        return Outcome(990 - 99 * short, float(sum(fleet)))

    return smallest_fleet(run, len(needed), 16)


@pytest.mark.parametrize("needed", [(1,), (6,), (16,), (4, 2), (1, 16), (16, 16)])
def test_the_smallest_fixed_fleet_is_as_good_as_the_largest(needed: Fleet) -> None:
    ceiling, fleet, best = searched(*needed)
    assert fleet == needed
    assert ceiling == Outcome(990, 16.0 * len(needed))
    assert best == Outcome(990, sum(needed))


def test_a_fixed_fleet_may_miss_one_request_in_a_hundred() -> None:
    _, fleet, _ = smallest_fleet(lambda fleet: Outcome(990 if fleet[0] >= 5 else 989, fleet[0]), 1, 16)
    assert fleet == (1,)
    by_workers = {5: 990, 4: 980}
    _, fleet, _ = smallest_fleet(lambda fleet: Outcome(by_workers.get(fleet[0], 1_000 * (fleet[0] > 5)), 1.0), 1, 16)
    assert fleet == (5,)


def test_results_are_kept_until_what_they_depend_on_changes(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    result = Result("key", 10, 9, 1.5, (3,), 10)
    Results(path).add("step", FIXED, result)
    Results(path).add("step", "dynamo", result)
    kept = Results(path)
    assert kept.get("step", FIXED, "key") == kept.get("step", "dynamo", "key") == result
    assert kept.get("step", FIXED, "other key") is None
    assert kept.get("sine", FIXED, "key") is None


def test_a_file_without_results_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text("[]", "utf-8")
    with pytest.raises(LoadlineError, match="has no results"):
        Results(path)


def test_only_planners_of_loadline_depend_on_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def keys() -> list[str]:
        return [key_of_run(ROWS["step"], policy) for policy in (FIXED, "dynamo", "auto")]

    before = keys()
    assert len(set(before)) == 3
    assert before != [key_of_run(ROWS["sine"], policy) for policy in (FIXED, "dynamo", "auto")]
    monkeypatch.setattr("tools.bench.peers.results.code_digest", lambda: "other code")
    after = keys()
    assert after[:2] == before[:2]
    assert after[2] != before[2]


def test_a_table_has_costs_relative_to_the_fixed_fleet_and_means() -> None:
    assert result_rows(FOUND, [FIXED, "dynamo"]) == [
        ("row", "workers", "GPU-hours", "fixed", "dynamo"),
        ("calm", "3 + 1", "2.00", "100.0%", "50.0%, 0.50"),
        ("busy", "2", "1.00", "100.0%", "100.0%, 2.00"),
        ("mean", "", "", "100.0%", "75.0%, 1.00"),  # the geometric mean of 0.5 and 2
    ]


def test_without_the_simulator_the_command_that_installs_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--rows", "step", "--lab", str(tmp_path)]) == 1
    assert f"python -m tools.bench.peers setup --lab {tmp_path}" in capsys.readouterr().err


def test_other_versions_than_those_of_the_checkout_are_not_set_up(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("ai-dynamo==0.1\n", "utf-8")
    assert not Lab(tmp_path).is_ready


def test_stored_results_need_no_simulator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = Results(tmp_path / "results.json")
    for policy in (FIXED, *DYNAMO, "auto"):
        results.add("step", policy, Result(key_of_run(ROWS["step"], policy), 10, 5, 1.0))
    assert main(["run", "--rows", "step", "--planner", "auto", "--lab", str(tmp_path)]) == 0
    assert "auto" in capsys.readouterr().out


def test_rows_are_listed_and_unknown_ones_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(ROWS)
    with pytest.raises(SystemExit):
        main(["run", "--rows", "step,nonesuch"])
    assert "no row nonesuch" in capsys.readouterr().err


def test_a_process_that_ends_is_an_error() -> None:
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    with (
        LineProcess("the child", command) as child,
        pytest.raises(LoadlineError, match="the child ended with exit code 3"),
    ):
        child.ask(b"{}")


@pytest.mark.skipif(
    not Lab(FOLDER).is_ready, reason="NVIDIA's simulator is not set up: python -m tools.bench.peers setup"
)
def test_policies_run_in_the_simulator() -> None:
    row = Row("", (Phase(20, 10), Phase(60, 90)), start_up_s=5)
    with Lab(FOLDER).simulator() as simulator, row_runs(row, simulator) as runs:
        fixed, dynamo, ours = (runs.run(policy, "") for policy in (FIXED, "dynamo-sla", "auto"))
        assert fixed == runs.run(FIXED, "")
    assert fixed.met >= 0.99 * fixed.ceiling > 0
    assert 3 <= fixed.fleet[0] <= 5  # a worker serves about 25 such requests a second
    assert fixed.requests == dynamo.requests == ours.requests
    assert 0 < ours.met <= ours.requests
    assert ours.gpu_hours > 2 * 80 / 3_600  # more than the two workers at the start
