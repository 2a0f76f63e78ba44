"""Exec platform: answers and failures of commands, and the actions of the command line."""

import asyncio
import json
from pathlib import Path

import pytest

from loadline.cli.main import main
from loadline.errors import ConfigError
from loadline.scalers.exec import ExecKnobs, ExecModelKnobs, ExecPlatform, ExecPoolKnobs, read
from loadline.scalers.platform import PlatformError, PoolKey, PoolObservation
from tests.waiting import until

KEY = PoolKey("m", "p")


def platform(script: str, timeout_ms: int = 20_000) -> ExecPlatform:
    models = (ExecModelKnobs("m", (ExecPoolKnobs("p", "named"),)),)
    return ExecPlatform(ExecKnobs(("sh", "-c", script), models, timeout_ms=timeout_ms))


def observe(script: str, timeout_ms: int = 20_000) -> PoolObservation:
    return asyncio.run(platform(script, timeout_ms).observe(KEY))


def test_an_observation_is_read() -> None:
    seen = observe("""echo '{"replicas": 3, "ready": 1, "workers": ["a", "b"], "ending": ["b"], "detail": "quota"}'""")
    assert seen == PoolObservation(3, 1, frozenset({"a", "b"}), frozenset({"b"}), "quota")
    assert observe("""echo '{"replicas": 0}'""") == PoolObservation(0)


def test_a_command_gets_its_order(tmp_path: Path) -> None:
    written = tmp_path / "order"
    asyncio.run(platform(f"cat > {written}").prefer_removal(KEY, ["a", "b"]))
    order = {"verb": "prefer_removal", "model": "m", "pool": "p", "workers": ["a", "b"]}
    assert json.loads(written.read_text("utf-8")) == order


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo first >&2; echo quota exceeded >&2; exit 3", r"sh observe: quota exceeded \(exit code 3\)"),
        ("exit 3", "sh observe: exit code 3"),
        ("echo nonsense", "sh observe: its output is invalid"),
        ("""echo '{"replicas": -1}'""", "sh observe: its output is invalid"),
        ("""printf '{"x":'; head -c 99999 /dev/zero | tr '\\0' '['""", "sh observe: its output is invalid"),
        ("head -c 2000000 /dev/zero", "sh observe: its output exceeds 1048576 bytes"),
    ],
)
def test_a_failure_has_its_reason(script: str, reason: str) -> None:
    with pytest.raises(PlatformError, match=reason):
        observe(script)


def test_a_command_that_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    written = tmp_path / "pid"
    with pytest.raises(PlatformError, match="sh observe: it did not end within 500 ms"):
        observe(f"sleep 600 & echo $! > {written}; wait", timeout_ms=500)
    child = Path("/proc", written.read_text("utf-8").strip())

    def ended() -> bool:
        try:
            return (child / "stat").read_text("utf-8").rsplit(")", 1)[1].split()[0] == "Z"
        except OSError:
            return True

    asyncio.run(until(ended, "the child has ended"))


def test_a_command_that_cannot_be_started_is_a_problem_of_the_deployment() -> None:
    models = (ExecModelKnobs("m", (ExecPoolKnobs("p"),)),)
    assert asyncio.run(ExecPlatform(ExecKnobs(("/no/such",), models)).validate()) == [
        "/no/such validate: it cannot be started: No such file or directory"
    ]
    assert asyncio.run(platform("""echo '["grant it"]'""").validate()) == ["grant it"]
    assert asyncio.run(platform("true").validate()) == []


@pytest.fixture
def config(tmp_path: Path) -> Path:
    count = tmp_path / "count"
    count.write_text("2", "utf-8")
    script = tmp_path / "scale.sh"
    script.write_text(
        f"""#!/bin/sh
order=$(cat)
case $order in
*observe*) echo "{{\\"replicas\\": $(cat {count}), \\"ready\\": 1, \\"detail\\": \\"no GPU\\"}}" ;;
*set_replicas*) echo "$order" | sed 's/.*"replicas": *//; s/}}.*//' >{count} ;;
*validate*) echo '["grant it"]' ;;
esac
""",
        "utf-8",
    )
    script.chmod(0o755)
    path = tmp_path / "exec.toml"
    path.write_text(f'command = ["{script}"]\nmodels = [{{ name = "m", pools = [{{ name = "p" }}] }}]\n', "utf-8")
    return path


def test_actions_read_and_set_replicas(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        code = main(["scaler", "exec", *arguments, "--config", str(config)])
        found = capsys.readouterr()
        return code, found.out + found.err

    assert run("status")[1].splitlines()[1].split() == ["m", "p", "2", "1", "-", "no", "GPU"]
    assert run("add", "m", "p", "3") == (0, "m p: 5 replicas requested\n")
    assert run("remove", "m", "p", "1") == (0, "m p: 4 replicas requested\n")
    assert run("remove", "m", "p", "9") == (1, "loadline: m p has 4 replicas: 9 cannot be removed\n")
    assert run("set", "m", "p", "0") == (0, "m p: 0 replicas requested\n")
    code, text = run("set", "m", "p", "2", "--wait", "0")
    assert (code, text.splitlines()[1]) == (1, "not ready after 0 s: 2 replicas, 1 ready no GPU")
    assert run("validate") == (1, "grant it\n")
    code, text = run("set", "m", "elsewhere", "2")
    assert (code, "Choose from m p" in text) == (2, True)


def test_options_may_stand_before_the_action(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scaler", "exec", "--config", str(config), "add", "m", "p", "1"]) == 0
    assert capsys.readouterr().out == "m p: 3 replicas requested\n"
    assert main(["scaler", "exec"]) == 2
    assert "--config" in capsys.readouterr().err
    assert main(["scaler", "observed", "status", "--config", str(config)]) == 2


def test_invalid_configurations_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "exec.toml"
    path.write_text('command = ["x"]\nmodels = [{ name = "m", pools = [{ name = "p", rule = "x" }] }]\n', "utf-8")
    with pytest.raises(ConfigError, match="rule"):
        read(path)
    pools = '[{ name = "p" }, { name = "p" }]'
    path.write_text(f'command = ["x"]\nmodels = [{{ name = "m", pools = {pools} }}]\n', "utf-8")
    with pytest.raises(ConfigError, match="two pools have the same name"):
        read(path)


def test_a_command_with_a_nul_is_refused(tmp_path: Path) -> None:
    """The first call ended with a traceback."""
    path = tmp_path / "exec.toml"
    path.write_text('command = ["a\\u0000b"]\nmodels = [{ name = "m", pools = [{ name = "p" }] }]\n', "utf-8")
    with pytest.raises(ConfigError, match=r"command.*Write .*text without a NUL"):
        read(path)
