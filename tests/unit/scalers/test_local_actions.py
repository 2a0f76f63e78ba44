"""Actions of the local and the circus scaler: they read, and change nothing."""

import os
from pathlib import Path

import pytest

from loadline.adapters.process_identity import ProcessIdentity, identify
from loadline.cli.main import main
from loadline.scalers.local.host import Allotment
from loadline.scalers.local.plan import Process
from loadline.scalers.local.state_file import SavedWorker, StateFile

POOL = '[[models]]\nname = "m"\npools = [{{ name = "p", role = "decode", command = ["{program}"] }}]'


def configure(directory: Path, text: str = "", program: str = "sh") -> str:
    path = directory / "local.toml"
    path.write_text(f'state_file = "{directory}/state.json"\n{text}\n{POOL.format(program=program)}', "utf-8")
    return str(path)


def saved(name: str, identity: ProcessIdentity, leave_by_ms: int | None = None) -> SavedWorker:
    return SavedWorker("m", "p", 1, Process(name, 5, 7, leave_by_ms), Allotment(0, 8_100, ()), identity, "")


@pytest.mark.parametrize("name", ["local", "circus"])
def test_status_lists_the_workers_that_run(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = identify(os.getpid())
    ended = ProcessIdentity(here.pid, here.start_ticks - 1, here.boot_id)
    with StateFile(tmp_path / "state.json", f"loadline/{name}") as file:
        file.write({"p": 4}, [saved("p-1", here), saved("p-2", here, 9), saved("p-3", ended)])
        assert main(["scaler", name, "status", "--config", configure(tmp_path)]) == 0
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.split()[:5] == ["m", "p", "1", "-", "2"]
    assert "no scaler noticed: p-3" in row


def test_a_file_of_the_other_scaler_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with StateFile(tmp_path / "state.json", "loadline/local") as file:
        file.write({}, [])
    assert main(["scaler", "circus", "status", "--config", configure(tmp_path)]) == 2
    assert "this is loadline/circus" in capsys.readouterr().err


@pytest.mark.parametrize("action", [["set", "m", "p", "2"], ["add", "m", "p", "1"], ["remove", "m", "p", "0"]])
def test_replicas_are_set_by_decisions_alone(
    action: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scaler", "local", "--config", configure(tmp_path), *action]) != 0
    assert "it alone writes the state file" in capsys.readouterr().err
    assert not (tmp_path / "state.json").exists()


def test_validate_prints_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scaler", "local", "validate", "--config", configure(tmp_path)]) == 0
    assert "can be scaled" in capsys.readouterr().out
    (tmp_path / "state.json").write_text("{", "utf-8")
    config = configure(tmp_path, 'sidecar_config = "/nowhere.toml"', "no-such-engine")
    assert main(["scaler", "local", "validate", "--config", config]) == 1
    printed = capsys.readouterr().out
    for problem in ("m p: no-such-engine is no program", "/nowhere.toml cannot be read", "state.json: it cannot be"):
        assert problem in printed


def test_sidecar_may_stand_before_and_after_the_action(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = configure(tmp_path, "grace_ms = 5000")
    for options in (["--sidecar", "validate"], ["validate", "--sidecar"], ["run", "--sidecar"], ["--sidecar"]):
        assert main(["scaler", "local", "--config", config, *options]) == 2
        assert "a sidecar is killed 5000 ms after SIGTERM" in capsys.readouterr().err
    assert main(["scaler", "local", "--config", config, "validate"]) == 0
    assert main(["scaler", "exec", "--config", config, "run", "--sidecar"]) == 2
    assert "exec starts no engines" in capsys.readouterr().err


def test_status_needs_a_state_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "local.toml"
    path.write_text(POOL.format(program="sh"), "utf-8")
    assert main(["scaler", "local", "status", "--config", str(path)]) != 0
    assert "state_file is not set" in capsys.readouterr().err


@pytest.mark.parametrize("action", [["set", "m", "p", "2"], ["add", "m", "p", "1"], ["validate"]])
def test_a_model_is_selected_only_where_that_has_an_effect(
    action: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scaler", "local", "--config", configure(tmp_path), "--model", "other", *action]) == 2
    assert f"--model: has no effect on {action[0]}. Leave it out." in capsys.readouterr().err
