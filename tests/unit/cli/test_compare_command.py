"""Command `loadline compare`: configurations, baselines and the bound."""

import re
from multiprocessing import active_children
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from loadline import report
from loadline.cli.compare import unique
from loadline.cli.main import main
from loadline.cli.parallel import simulate_all
from loadline.errors import LoadlineError
from loadline.sim.compare.comparison import Comparison
from loadline.sim.simulation import Scenario
from tests.support.simulated_fleets import aggregated, steady
from tests.support.simulation_files import CONFIG, write_options


def names(printed: str) -> list[str]:
    """Return the first column of the table, whose columns are at least two spaces apart."""
    return [line.split("  ")[0] for line in printed.splitlines()[3:]]


def test_the_table_has_configurations_baselines_and_the_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "hpa.toml"
    other.write_text(CONFIG.replace('"static"', '"hpa"'), "utf-8")
    json, html = tmp_path / "out.json", tmp_path / "out.html"
    options = [*write_options(tmp_path), "--config", str(other), "--json", str(json), "--html", str(html)]
    assert main(["compare", *options]) == 0
    printed = capsys.readouterr()
    expected = ["config", "hpa-2", "hpa-2, clairvoyant", "static-peak", "hpa", "kpa"]
    assert names(printed.out) == [*expected, "work bound"]
    assert printed.out.startswith("trace: 120 requests in 59.5 s; seed 0\nobjectives of every request: TTFT 500 ms, ")
    assert max(map(len, printed.out.splitlines())) <= 80
    assert "planner" not in printed.out
    found = msgspec.json.decode(json.read_bytes(), type=Comparison)
    # A fixed count uses no forecast.
    assert [run.kind for run in found.runs] == ["config", "config", "clairvoyant"] + ["baseline"] * 3
    assert [run.outcome.planner for run in found.runs] == ["static"] + ["hpa"] * 2 + ["static", "hpa", "kpa"]
    assert {run.outcome.requests for run in found.runs} == {120}
    assert 0 < found.work_bound.gpu_hours < min(run.outcome.gpu_hours for run in found.runs)
    assert "hpa-2, clairvoyant" in html.read_text("utf-8")


def test_wide_tables_have_all_columns_and_others_cut_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = tmp_path / f"{'n' * 40}.toml"
    long.write_text(CONFIG.replace('"static"', '"hpa"'), "utf-8")
    options = [*write_options(tmp_path)[:-2], "--config", str(long), "--baseline", "none"]
    assert main(["compare", *options]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert names(printed) == [f"{'n' * 23}…", f"{'n' * 10}…, clairvoyant", "work bound"]
    assert main(["compare", *options, "--wide"]) == 0
    assert tuple(re.split("  +", capsys.readouterr().out.splitlines()[2].strip())) == report.COMPARISON_HEADER


def test_all_runs_have_the_objectives_of_the_first_configuration(tmp_path: Path) -> None:
    other, json = tmp_path / "other.toml", tmp_path / "out.json"
    other.write_text(CONFIG + "objectives = { ttft_ms = 100.0, itl_ms = 10.0 }\n", "utf-8")
    options = ["--config", str(other), "--baseline", "static-peak", "--json", str(json)]
    assert main(["compare", *write_options(tmp_path), *options]) == 0
    found = msgspec.json.decode(json.read_bytes(), type=Comparison)
    judged = {(run.outcome.ttft_objective_ms, run.outcome.itl_objective_ms) for run in found.runs}
    assert judged == {(500.0, 50.0)}


def test_results_do_not_depend_on_the_number_of_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = write_options(tmp_path)
    results = []
    for jobs in ("1", "3"):
        out = tmp_path / f"{jobs}.json"
        options = ["--jobs", jobs, "--baseline", "kpa", "--json", str(out)]
        assert main(["compare", *files, *files[-2:], *options]) == 0
        results.append((out.read_bytes(), capsys.readouterr().out))
    assert results[0] == results[1]
    assert names(results[0][1]) == ["config", "config-2", "kpa", "work bound"]


def test_baselines_can_be_omitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *write_options(tmp_path), "--baseline", "none"]) == 0
    assert names(capsys.readouterr().out) == ["config", "work bound"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--jobs", "-1"], "--jobs"),
        (["--jobs", "100000"], "--jobs"),
        (["--baseline", "none", "--baseline", "hpa"], "--baseline"),
        (["--config", "there/is/none.toml"], "there/is/none.toml"),
    ],
)
def test_invalid_options_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], problem: str
) -> None:
    assert main(["compare", *write_options(tmp_path), *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert problem in printed.err


def test_an_error_names_the_file_among_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(CONFIG.replace('"main"', '"other"').replace("main", "other"), "utf-8")
    assert main(["compare", *write_options(tmp_path), "--config", str(wrong)]) == 2
    assert "wrong.toml" in capsys.readouterr().err


def test_names_are_made_unique() -> None:
    assert unique(["a", "b", "a", "a-2", "a"]) == ["a", "b", "a-2", "a-2-2", "a-3"]


def test_a_process_that_is_killed_is_reported_and_the_others_are_stopped() -> None:
    def kill(_share: float) -> None:
        active_children()[0].kill()

    scenarios = [Scenario(name, *aggregated(), steady(20_000, 1.0)) for name in "ab"]
    with pytest.raises(
        LoadlineError, match=r"^[ab]: its process was killed by signal 9\. Try again, with fewer --jobs"
    ):
        simulate_all(scenarios, 2, kill)
    assert active_children() == []


def test_a_process_that_cannot_be_started_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_process: object) -> None:
        raise BrokenPipeError("it is gone")

    monkeypatch.setattr("multiprocessing.context.SpawnProcess.start", broken)
    with pytest.raises(LoadlineError, match=r"^mine: cannot start its process \(it is gone\)"):
        simulate_all([Scenario("mine", *aggregated(), steady(10, 1.0))], 1, lambda _share: None)


def test_an_error_of_a_process_is_reported_with_its_name() -> None:
    settings, fleet = aggregated()
    wrong = replace(fleet, model="another")
    with pytest.raises(LoadlineError, match=r"^mine: model of the fleet: is 'another'"):
        simulate_all([Scenario("mine", settings, wrong, steady(10, 1.0))], 1, lambda _share: None)
