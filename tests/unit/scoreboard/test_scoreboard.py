"""Scoreboard: runs by name, results that are kept, scores, and the page."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planners import BUILT_IN
from loadline.core.state.settings import ModelKnobs
from loadline.report import plots
from loadline.sim.compare.baselines import BASELINES
from tools.scoreboard.__main__ import main
from tools.scoreboard.cases import Case, Run, all_runs, is_selected, kind_of, policies
from tools.scoreboard.fleets import FLEETS, settings
from tools.scoreboard.page import Board, page, plot, score_table
from tools.scoreboard.results import RunResult, append_result, read_results, shared_keys
from tools.scoreboard.scores import Estimate, by_case, scores
from tools.scoreboard.traces import busiest_change, trace_files

CASE = Case("t", "70b", "aggregated", 20, 95)
OTHER = Case("t", "70b", "aggregated", 110, 95)
NAMED = re.compile(r"^\| (\S+) \| (.*) \|$", re.MULTILINE)


def result(run: Run, met: float, gpu_hours: float) -> RunResult:
    return RunResult(run.name, run.name, 2.0, 100, met, met, met, gpu_hours, 1.0, 0, 0, 0.1)


def results(*rows: tuple[Case, str, Sequence[tuple[float, float]]]) -> dict[Run, RunResult]:
    """Return results from case, policy, and attainment and GPU-hours by seed."""
    return {
        run: result(run, *values)
        for case, policy, seeds in rows
        for seed, values in enumerate(seeds)
        for run in [Run(case, policy, seed)]
    }


def tables(text: str) -> list[str]:
    """Return the lines of all tables."""
    return [line for line in text.splitlines() if line.startswith("|")]


# -- runs --------------------------------------------------------------------------------------------------------------


def test_all_planners_of_the_registry_and_all_baselines_take_part() -> None:
    found = policies()
    assert len(set(found)) == len(found)
    assert set(BASELINES) <= set(found)
    missing = {kind.name for kind in BUILT_IN} - set(found)
    assert missing == {"apa", "keda", "static"}  # they run as baselines; hpa and kpa are baselines of their own name
    default = ModelKnobs("m", (PoolKnobs("p", "aggregated"),)).planner
    assert [name for name in found if kind_of(name) == "reference"] == [f"{default}, clairvoyant"]


@pytest.mark.parametrize(
    ("patterns", "selected"),
    [
        ((), True),
        (("t/70b",), True),
        (("*/95/hpa/0",), True),
        (("t/7",), False),
        (("x", "*/hpa"), True),
        (("*/1",), False),
    ],
)
def test_runs_are_selected_by_name(patterns: Sequence[str], *, selected: bool) -> None:
    assert is_selected(Run(CASE, "hpa", 0), patterns) == selected


def test_every_planner_gets_the_objective_as_its_attainment() -> None:
    fleet = FLEETS["70b"]
    model = settings(fleet, "disaggregated", "sla", 0.99).models[0]
    assert (model.effective_objectives.attainment, model.knobs.throughput.attainment) == (0.99, 0.99)
    assert (model.effective_objectives.ttft_ms, model.effective_objectives.itl_ms) == (fleet.ttft_ms, fleet.itl_ms)


def test_runs_without_an_attainment_of_their_own_are_done_once() -> None:
    keys = shared_keys({"t": Path(__file__)}, 60.0)
    names = {policy: len({keys.of(run) for run in all_runs(["t"], 1) if run.policy == policy}) for policy in policies()}
    cases = len({run.case for run in all_runs(["t"], 1)})
    assert (names["hpa"], names["saturation"]) == (cases // 2, cases // 2)
    assert (names["sla"], names["queueing"]) == (cases, cases)


# -- results that are kept ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a trace of two minutes: one request in two seconds, then three per second."""
    path = tmp_path_factory.mktemp("traces")
    times = [*(2.0 * number for number in range(30)), *(60.0 + number / 3.0 for number in range(180))]
    rows = "".join(f"{at_s:.3f},{800 + 10 * (number % 7)},80\n" for number, at_s in enumerate(times))
    (path / "steps.csv").write_text(f"arrival_s,isl,osl\n{rows}", "utf-8")
    (path / "broken.csv").write_text("a,b\n1,2\n", "utf-8")
    return path


def test_only_missing_runs_are_done_again(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, written = tmp_path / "kept" / "results.jsonl", tmp_path / "scoreboard.md"
    names = (f"steps/70b/aggregated/20/{policy}" for policy in ("95/static-peak", "99/static-peak", "95/hpa"))
    only = ["--only", " ".join(names)]
    command = ["--traces", str(folder), "--seeds", "2", "--jobs", "1", "--results", str(kept)]
    assert main([*command, *only]) == 0
    first, printed = kept.read_bytes().splitlines(), tables(capsys.readouterr().out)
    assert len(first) == 4  # two seeds of each baseline: no baseline depends on the attainment
    assert {line.split(" | ")[0] for line in printed} >= {"| static-peak", "| hpa", "| work bound"}
    kept.write_bytes(b"\n".join(first[1:]) + b"\n" + first[0][:20])  # a crash has cut one off
    assert main([*command, *only, "--page", str(written)]) == 0
    assert sorted(read_results(kept)) == sorted(line.split(b'"')[3].decode() for line in first)
    assert tables(written.read_text("utf-8")) == printed
    assert main([*command, "--only", "nothing"]) == 2
    capsys.readouterr()
    assert main([*command, *only, "--window-s", "60"]) == 0
    assert "up to 60 s of each" in capsys.readouterr().out
    assert len(read_results(kept)) == 2 * len(first), "runs of another part of the trace are others"


def test_a_trace_that_cannot_be_used_is_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--traces", str(folder), "--only", "broken"]) == 2
    assert "left out: " in capsys.readouterr().err


def test_a_window_without_a_minute_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--window-s", "59"])
    assert "argument --window-s: must be a number of seconds, 60 or more" in capsys.readouterr().err


def test_results_are_found_by_key(tmp_path: Path) -> None:
    path = tmp_path / "a" / "results.jsonl"
    assert read_results(path) == {}
    one = result(Run(CASE, "hpa", 0), 0.9, 2.0)
    append_result(path, one)
    assert read_results(path) == {one.key: one}


# -- traces ------------------------------------------------------------------------------------------------------------


def test_traces_are_named_by_their_files(tmp_path: Path) -> None:
    for name in ("a_x0.25.csv.gz", "b.jsonl", "README.md"):
        (tmp_path / name).touch()
    assert list(trace_files(tmp_path))[-2:] == ["a_x0.25", "b"]


def test_the_window_with_the_largest_change_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    spans = ((0, 60, 0.5), (60, 120, 3.0), (120, 200, 4.0))  # begin, end, requests per second
    times = [begin + number / rate for begin, end, rate in spans for number in range(int((end - begin) * rate))]
    path.write_text("arrival_s,isl,osl\n" + "".join(f"{at_s:.3f},100,10\n" for at_s in times), "utf-8")
    window = busiest_change(path, 40.0)
    assert (window.start_s, window.duration_s) == (40.0, 40.0)  # not the busiest one, which begins at 120 s


# -- scores ------------------------------------------------------------------------------------------------------------


def test_an_interval_is_that_of_students_t() -> None:
    assert Estimate.of([3.0]) == Estimate(3.0, None)
    found = Estimate.of([1.0, 2.0, 3.0])  # standard deviation 1, of the mean 1 / sqrt(3)
    assert found.mean == 2.0
    assert found.half_width == pytest.approx(4.30 / 3**0.5)


def test_scores_are_geometric_means_over_the_cases() -> None:
    cases = by_case(
        results(
            (CASE, "hpa", [(0.98, 2.0), (0.96, 2.0)]),
            (CASE, "kpa", [(0.91, 4.0), (0.91, 4.0)]),
            (CASE, "sla", [(0.99, 1.0), (0.99, 1.0)]),
            (OTHER, "hpa", [(0.90, 9.0)]),
            (OTHER, "kpa", [(0.98, 3.0)]),
            (OTHER, "sla", [(0.98, 3.0)]),
        )
    )
    found = {score.policy: score for score in scores(cases, 95)}
    # hpa: 2 over sqrt(4 x 1) is 1, and 9 over 3 is 3: sqrt(3). Misses: 0.03 over sqrt(0.09 x 0.01), and 0.1 over 0.02.
    assert found["hpa"].gpu_hours_ratio == pytest.approx(3**0.5)
    assert found["hpa"].misses_ratio == pytest.approx((1.0 * 5.0) ** 0.5)
    assert (found["hpa"].cases_met, found["hpa"].cases) == (1, 2)
    assert found["hpa"].met == pytest.approx(0.935)
    assert [score.policy for score in scores(cases, 95)] == ["sla", "kpa", "hpa"]
    assert scores(cases, 99) == []


def test_a_reference_is_none_of_the_others_and_cases_that_lack_a_policy_do_not_count() -> None:
    cases = by_case(
        results(
            (CASE, "hpa", [(0.9, 2.0)]),
            (CASE, "sla", [(0.9, 4.0)]),
            (CASE, "sla, clairvoyant", [(0.9, 100.0)]),
            (OTHER, "hpa", [(0.1, 1.0)]),
        )
    )
    found = {score.policy: score for score in scores(cases, 95)}
    assert {score.cases for score in found.values()} == {1}
    assert found["hpa"].gpu_hours_ratio == pytest.approx(0.5)
    assert found["sla, clairvoyant"].gpu_hours_ratio == pytest.approx(100 / 8**0.5)


# -- page --------------------------------------------------------------------------------------------------------------


def test_the_page_has_each_policy_in_each_case() -> None:
    found = results(
        (CASE, "hpa", [(0.98, 2.0), (0.96, 3.0)]),
        (CASE, "sla", [(0.99, 1.0), (0.99, 1.0)]),
        (OTHER, "hpa", [(0.90, 9.0), (0.90, 9.0)]),
    )
    text = page(Board(found, 60, "c0de", 600.0, "make scoreboard", "t/70b"), {95: "x.svg"})
    rows = {name: cells.split(" | ") for name, cells in NAMED.findall(text.split("## Cases")[1])}
    assert rows["policy"] == ["20 s, 95 %", "110 s, 95 %"]
    assert rows["hpa"] == ["97.0% ± 12.7, 2.50 ± 6.36", "90.0% ± 0.0, 9.00 ± 0.00"]
    assert rows["sla"] == ["99.0% ± 0.0, 1.00 ± 0.00", "-"]
    assert "6 of the 60 runs of `make scoreboard ONLY='t/70b'`, of the code whose digest is `c0de`" in text
    assert "- traces, up to 10 min of each: t\n" in text
    assert "- start-up times: 20 s, 110 s\n" in text
    assert "- seeds: 0, 1\n" in text
    assert "ONLY='t/70b/aggregated/*/*/POLICY'" in text
    assert "](x.svg)" in text
    assert "## Attainment 95 %" in text
    del found[Run(CASE, "sla", 0)], found[Run(OTHER, "hpa", 0)], found[Run(OTHER, "hpa", 1)]
    found[Run(OTHER, "kpa", 0)] = result(Run(OTHER, "kpa", 0), 0.5, 1.0)
    without_whole_case = page(Board(found, 60, "c0de", 600.0, "make scoreboard"), {})
    assert "## Attainment" not in without_whole_case


@pytest.mark.skipif(not plots.available(), reason="matplotlib is not installed")
def test_the_plot_is_a_file_of_its_own() -> None:
    found = scores(by_case(results((CASE, "hpa", [(0.98, 2.0)]), (CASE, "sla", [(0.9, 1.0)]))), 95)
    drawn = plot(found, 95)
    assert drawn.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    assert all(f">{score.policy}<" in drawn and score.policy in "".join(score_table(found)) for score in found)
    used = set(re.findall(r"var\((--\w+)\)", drawn))
    assert used <= set(re.findall(r"(--\w+): #", drawn))
