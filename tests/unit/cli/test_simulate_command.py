"""Command `loadline simulate`: output, files and errors."""

import errno
import os
from collections.abc import Sequence
from errno import ENOSPC
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from loadline.cli.main import main
from loadline.sim.result import SimulationResult
from tests.support.simulation_files import CONFIG, FLEET, write_options

RATES = "t,num_req,mean_isl,mean_osl\n0,60,100,\n60,60,100,\n"


def test_the_command_prints_the_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *write_options(tmp_path)]) == 0
    printed = capsys.readouterr()
    lines = dict(line.split(maxsplit=1) for line in printed.out.splitlines())
    assert lines["trace"].startswith("trace: 120 requests in 59.5 s")
    assert "within 500 ms; p50" in lines["TTFT"]
    assert "within 50 ms; p50" in lines["ITL"]
    assert lines["requests"].startswith("120 finished, 0 unfinished, 0 refused, 0 dropped")
    assert printed.err == ""


def test_migration_without_a_migration_table_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    migrations = CONFIG + "[models.migration]\nenabled = true\ndecode_load_threshold = 0.9\n"
    assert main(["simulate", *write_options(tmp_path, config=migrations)]) == 0
    assert "no request migrates, since the fleet has no table [migration]" in capsys.readouterr().err
    assert main(["simulate", *write_options(tmp_path, config=migrations, fleet=FLEET + "[migration]\n")]) == 0
    assert "[migration]" not in capsys.readouterr().err


@pytest.mark.parametrize(("judged", "ttft"), [("", "300"), ("ttft_ms = 400.0", "400")])
def test_objectives_of_the_fleet_override_those_of_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], judged: str, ttft: str
) -> None:
    planned = CONFIG + "objectives = { ttft_ms = 300.0, itl_ms = 20.0 }\n"
    assert main(["simulate", *write_options(tmp_path, config=planned, fleet=judged + FLEET)]) == 0
    printed = capsys.readouterr().out
    assert f"within {ttft} ms; p50" in printed
    assert "within 20 ms; p50" in printed


def test_the_same_seed_gives_the_same_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["simulate", *write_options(tmp_path, trace=RATES), "--osl-tokens", "10"]
    results = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert main([*options, "--seed", seed, "--json", str(tmp_path / name)]) == 0
        found = msgspec.json.decode((tmp_path / name).read_bytes(), type=SimulationResult)
        results.append((replace(found, wall_s=0.0), capsys.readouterr().out))
        assert found.wall_s > 0
    assert results[0] == results[1]
    assert results[0][0].digest != results[2][0].digest
    assert len({path.name for path in tmp_path.iterdir()}) == 6  # and no other files


def test_the_page_has_the_command_to_reproduce_it(tmp_path: Path) -> None:
    page = tmp_path / "a page.html"
    assert main(["simulate", *write_options(tmp_path), "--html", str(page)]) == 0
    text = page.read_text("utf-8")
    assert "loadline simulate --trace" in text
    assert "a page.html" in text
    assert "the static planner decides" in text  # the description of the configuration
    assert "&quot;replicas_max&quot;: " in text  # and all knobs


def test_a_journal_can_be_replayed_and_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal, json = tmp_path / "a" / "journal", tmp_path / "out.json"
    options = ["simulate", *write_options(tmp_path), "--quiet", "--json", str(json)]
    assert main(options) == 0
    without = msgspec.json.decode(json.read_bytes(), type=SimulationResult)
    assert main([*options, "--journal", str(journal)]) == 0
    outcome = msgspec.json.decode(json.read_bytes(), type=SimulationResult)
    assert replace(outcome, wall_s=0.0) == replace(without, wall_s=0.0)
    capsys.readouterr()
    assert main(["replay", str(journal)]) == 0
    assert capsys.readouterr().out.startswith("the replay is exact: 1 segment, ")
    [action] = outcome.actions
    assert main(["explain", action.decision_id, "--journal", str(journal)]) == 0
    explained = capsys.readouterr().out
    assert action.decision_id in explained
    assert all(reason in explained for reason in action.reasons)
    assert main([*options, "--journal", str(journal)]) == 2
    assert "is not empty. Name a new folder." in capsys.readouterr().err
    assert main([*options, "--journal", str(json)]) == 2
    assert "cannot be created" in capsys.readouterr().err


def test_a_journal_that_cannot_be_written_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadline.adapters.file_journal.os.writev", full_disk)
    assert main(["simulate", *write_options(tmp_path), "--quiet", "--journal", str(tmp_path / "journal")]) == 1
    printed = capsys.readouterr()
    assert "records could not be written. Is the disk full?" in printed.err
    assert "120 finished" in printed.out, "the results are printed nevertheless"


def full_disk(_file: int, _parts: Sequence[bytes]) -> int:
    raise OSError(ENOSPC, "No space left on device")


def test_a_window_of_the_trace_can_be_selected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *write_options(tmp_path), "--start", "10", "--duration", "20", "--scale", "2"]) == 0
    assert "80 requests in 20 s" in capsys.readouterr().out


def test_rates_become_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["simulate", *write_options(tmp_path, trace=RATES)]
    bursty = ["--process", "gamma", "--cv", "3", "--osl-tokens", "10", "--length-cv", "0.5"]
    assert main([*options, *bursty]) == 0
    assert "requests in 2 min" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"trace": "arrival_s,isl\n0,1\n"}, ["trace.csv, line 1", "osl"]),
        ({"trace": "arrival_s,isl,osl\n0,1,1\n-1,1,1\n"}, ["trace.csv, line 3", "Sort the trace"]),
        ({"trace": RATES}, ["trace.csv, line 2", "osl_tokens"]),
        ({"trace": ""}, ["trace.csv, line 1", "empty"]),
        (
            {"fleet": FLEET.replace("kv_blocks", "kv_block")},
            ["fleet.toml", "pools[0].kv_block", "Did you mean kv_blocks?"],
        ),
        ({"fleet": FLEET.replace("linear", "# linear")}, ["fleet.toml", "profile"]),
        ({"fleet": FLEET.replace("2000", "0")}, ["fleet.toml", "kv_blocks", "1 or more"]),
        ({"fleet": FLEET.replace('"main"', '"other"')}, ["config.toml: pool ", "Describe it there"]),
        ({"fleet": "model = 'x'\n" + FLEET}, ["config.toml", "'x'", "llama"]),
        ({"fleet": "routing = 'random'\n" + FLEET}, ["fleet.toml", "routing", "least_loaded"]),
        ({"fleet": FLEET.replace("alpha = 5.0", "alpha = -5.0")}, ["pools[0].linear: alpha is -5.0. Write a finite"]),
        (
            {"fleet": FLEET.replace("alpha", "alfa")},
            ["fleet.toml, line ", "pools[0].linear.alfa", "Did you mean alpha?"],
        ),
        ({"fleet": FLEET.replace("workers = 2", "workers = 1000000")}, ["pools[0].workers", "from 0 to 10000"]),
        ({"fleet": "]"}, ["fleet.toml, line 1"]),
        ({"config": CONFIG.replace("static.", "statik.")}, ["config.toml", "statik", "Did you mean static?"]),
        ({"config": CONFIG.replace('planner = "static"', 'planner = "hpaa"')}, ["config.toml", "Did you mean hpa?"]),
        ({"config": ""}, ["config.toml", "models"]),
    ],
)
def test_an_unusable_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], texts: dict[str, str], words: list[str]
) -> None:
    options = write_options(tmp_path, **texts)
    before = sorted(tmp_path.iterdir())
    assert main(["simulate", *options, "--json", str(tmp_path / "out.json")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert all(word in printed.err for word in words), printed.err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--scale", "0"], "--scale: is 0.0. Write a number, above 0, at most 1000.\n"),
        (["--scale", "nan"], "scale"),
        (["--duration", "-1"], "--duration: "),
        (["--start", "1000"], "before the start at 1000 s"),
        (["--cv", "100"], "cv"),
        (["--isl-tokens", "0"], "--isl-tokens: "),
        (
            ["--json", "no/such/file.json"],
            "--json: no/such/file.json cannot be written: No such file or directory. Name",
        ),
        (["--json", "/proc/out.json"], "--json: /proc/out.json cannot be written: "),
        (["--json", "."], "--json: . is a folder"),
        (["--json", "/dev/null"], "--json: /dev/null is not a regular file"),
        (["--html", "no/such/folder.html"], "--html"),
        (["--json", "one", "--html", "one"], "--html: one is also the file of --json"),
        (["--json", "one", "--html", "./one"], "--html: one is also the file of --json"),
        (["--json", "-"], "--json: - is not a usable file name"),
        (["--json", "x" * 250], "is not a usable file name"),
    ],
)
def test_an_invalid_option_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert main(["simulate", *write_options(tmp_path), *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err


@pytest.mark.parametrize("options", [["--seed", "x"], ["--process", "uniform"], ["--gaps", "maybe"], ["--scale", "x"]])
def test_an_option_out_of_bounds_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *write_options(tmp_path), *options])
    assert ended.value.code == 2
    assert options[0] in capsys.readouterr().err


def test_input_files_are_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = write_options(tmp_path)
    for read in ("--trace", "--fleet", "--config"):
        path = options[options.index(read) + 1]
        before = Path(path).read_bytes()
        assert main(["simulate", *options, "--json", path]) == 2
        assert "is an input file" in capsys.readouterr().err
        assert Path(path).read_bytes() == before


def test_without_matplotlib_a_page_is_refused_before_the_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("loadline.report.plots.find_spec", lambda _name: None)
    monkeypatch.setattr("loadline.cli.simulate.run", lambda *_: pytest.fail("it was simulated"))
    assert main(["simulate", *write_options(tmp_path), "--html", str(tmp_path / "out.html")]) == 2
    assert "pip install 'loadline-agent[plots]'" in capsys.readouterr().err


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    out.write_text("old")
    options = ["simulate", *write_options(tmp_path), "--json", str(out)]

    def broken(_self: Path, _target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", broken)
        assert main(options) == 1
    assert f"loadline: {out} cannot be written: No space left on device. Free some space" in capsys.readouterr().err
    assert out.read_text() == "old"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert main(options) == 0
    assert out.read_text() != "old"
    assert out.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found
