"""`loadline step` through pipes, and the programs in docs/how-to/co-simulate.md."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from loadline.sim.step import Stepper
from loadline.wire.steps import LINE_BYTES_MAX, encode_step
from tests.support.step_simulator import TOML, StepSimulator, settings

pytestmark = pytest.mark.process

DOCUMENT = (Path(__file__).parents[2] / "docs" / "how-to" / "co-simulate.md").read_text("utf-8")
PROGRAM, LIBRARY = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
TIMEOUT_S = 60
STEP = [sys.executable, "-W", "error", "-m", "loadline", "step", "--config"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "loadline.toml"
    path.write_text(TOML, "utf-8")
    return path


def run(config: Path, lines: bytes, **environ: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [*STEP, str(config)], input=lines, capture_output=True, timeout=TIMEOUT_S, check=False, env=os.environ | environ
    )


@contextmanager
def answering(config: Path) -> Iterator[tuple["subprocess.Popen[bytes]", IO[bytes], IO[bytes], IO[bytes]]]:
    """Yield the command after its first answer."""
    command = [*STEP, str(config)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b'{"now_ms": 0}\n')
        process.stdin.flush()
        assert process.stdout.readline()
        yield process, process.stdin, process.stdout, process.stderr


def test_the_step_in_the_document_gets_the_shown_answer(tmp_path: Path) -> None:
    [configuration] = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
    step, answer = re.findall(r"```json\n(.*?)```", DOCUMENT, re.DOTALL)[:2]
    path = tmp_path / "loadline.toml"
    path.write_text(configuration, "utf-8")
    done = run(path, json.dumps(json.loads(step)).encode() + b"\n")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(answer)


def test_the_program_in_the_document_reports_drains_with_model_and_pool() -> None:
    assert 'f"drained.llama.engine.{name}"' in PROGRAM


def test_an_invalid_configuration_ends_with_exit_code_2_and_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "loadline.toml"
    path.write_text("x = 1\n", "utf-8")
    done = run(path, b'{"now_ms": 0}\n')
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"x: is not a known key" in done.stderr
    assert "An invalid configuration ends with exit code 2 too, without an answer" in DOCUMENT


def test_the_program_in_the_document_prints_the_shown_output(tmp_path: Path) -> None:
    [configuration] = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
    [shown] = re.findall(r"\$ python cosim.py\n(.*?)```", DOCUMENT, re.DOTALL)
    (tmp_path / "loadline.toml").write_text(configuration, "utf-8")
    (tmp_path / "cosim.py").write_text(PROGRAM, "utf-8")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, "-W", "error", "cosim.py"],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == shown
    assert len(PROGRAM.splitlines()) <= 40


def test_the_library_in_the_document_works() -> None:
    command = [sys.executable, "-W", "error", "-c", LIBRARY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "the registry or the decisions have not been read yet 1050\n"


def test_the_steps_in_the_document_are_valid(config: Path) -> None:
    given, answer, error = (json.loads(text) for text in re.findall(r"```json\n(.*?)```", DOCUMENT, re.DOTALL))
    first = {"now_ms": 0, "frames": [{"record": given["frames"][0]["record"] | {"worker": "w0"}}]}
    done = run(config, b"\n".join(json.dumps(line).encode() for line in (first, given)))
    assert done.returncode == 0
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert answers[1].keys() == answer.keys()
    assert answers[1]["rejected"] == []
    back = run(config, b'{"now_ms":0}\n{"now_ms":0}\n{"now_ms":30000}\n{"now_ms":5}\n')
    assert json.loads(back.stdout.splitlines()[-1]) == error


def test_the_same_lines_give_the_same_bytes(config: Path) -> None:
    simulator = StepSimulator(Stepper(settings()).step)
    simulator.run(420)
    lines = b"".join(encode_step(given) + b"\n" for given in simulator.inputs)
    expected = b"".join(encode_step(answer) + b"\n" for answer in simulator.outputs)
    assert run(config, lines, PYTHONHASHSEED="1").stdout == expected
    assert run(config, lines, PYTHONHASHSEED="2").stdout == expected


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"", "Input data was truncated"),
        (b"{", "Input data was truncated"),
        (b"\xff", "invalid"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "missing required field `now_ms`"),
        (b'{"now_ms": -1}', "Expected `int` >= 0"),
        (b'{"now_ms": 1.5}', "Expected `int`, got `float`"),
        (b'{"now_ms": 1, "frame": []}', "unknown field `frame`"),
        (b'{"now_ms": 1, "frames": [{"subjekt": "x"}]}', "unknown field `subjekt` - at `$.frames[0]`"),
        (b'{"now_ms": 1, "frames": [{}]}', "frames[0] is neither"),
        (b'{"now_ms": 1, "frames": [' + b",".join([b"{}"] * 65_537) + b"]}", "length <= 65536"),
        (b" " * (LINE_BYTES_MAX + 1), f"more than {LINE_BYTES_MAX} bytes"),
        (b'{"now_ms": 1, "frames": [{"payload": ' + b"[" * 100_000, "maximum recursion depth"),
    ],
    ids=lambda value: value[:40] if isinstance(value, bytes) else None,
)
def test_an_invalid_line_ends_the_command(config: Path, line: bytes, problem: str) -> None:
    done = run(config, b'{"now_ms": 0}\n' + line + b"\n" + b'{"now_ms": 2}\n')
    assert done.returncode == 2
    good, error = map(json.loads, done.stdout.splitlines())
    assert "error" not in good
    assert error.keys() == {"error"}
    assert error["error"].startswith("line 2: ")
    assert problem in error["error"]
    assert len(error["error"]) < 600
    assert done.stderr.decode() == f"loadline: {error['error']}\n"


def test_a_last_line_without_a_newline_is_read(config: Path) -> None:
    assert json.loads(run(config, b'{"now_ms": 0}').stdout)["next_wake_ms"] == 1_000


def test_empty_input_has_no_answers(config: Path) -> None:
    done = run(config, b"")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_an_invalid_configuration_is_reported(config: Path) -> None:
    config.write_text("models = []", "utf-8")
    done = run(config, b'{"now_ms": 0}\n')
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"models" in done.stderr


def test_the_command_imports_no_servers_or_plots(config: Path) -> None:
    command = [sys.executable, "-X", "importtime", *STEP[1:], str(config)]
    done = subprocess.run(command, input=b"", capture_output=True, timeout=TIMEOUT_S, check=True)
    imported = {line.rpartition(b"|")[2].strip() for line in done.stderr.splitlines()}
    assert b"loadline.sim.step" in imported
    assert imported.isdisjoint({b"scipy", b"pmdarima", b"matplotlib", b"nats", b"aiohttp", b"etcd3"})


def test_a_closed_output_pipe_ends_the_command_without_an_error(config: Path) -> None:
    with answering(config) as (process, stdin, stdout, stderr):
        stdout.close()
        stdin.write(b'{"now_ms": 1}\n')
        stdin.flush()
        assert process.wait(TIMEOUT_S) == 0
        assert stderr.read() == b""


def test_ctrl_c_ends_the_command_without_a_traceback(config: Path) -> None:
    with answering(config) as (process, _, _, stderr):
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 130
        assert stderr.read() == b""
