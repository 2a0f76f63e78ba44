import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

import loadline
from loadline.adapters.logs import BoundedLogger, LineLimit, bounded, configure


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    handlers, level = logging.root.handlers[:], logging.root.level
    with io.StringIO() as stream:
        configure("json", "info", stream)
        yield stream
    structlog.reset_defaults()
    logging.root.handlers, logging.root.level = handlers, level


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_lines_are_json_with_level_and_time_and_lower_levels_are_omitted(stream: io.StringIO) -> None:
    log = structlog.get_logger()
    log.debug("quiet")
    log.info("said", worker="w1", count=3, ratio=0.5, none=None)
    [line] = lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "said", "level": "info", "worker": "w1", "count": 3, "ratio": 0.5, "none": None}


def test_values_of_secret_keys_are_hidden_at_any_depth(stream: io.StringIO) -> None:
    knobs = {"user": "u", "secret": "c"}
    fields = {"password": "a", "api_token": "b", "isl_tokens": 7, "password_file": "/run/p", "knobs": knobs}
    structlog.get_logger().info("x", **fields)
    [line] = lines(stream)
    assert line["password"] == line["api_token"] == line["knobs"]["secret"] == "<hidden>"  # noqa: S105
    assert (line["isl_tokens"], line["password_file"], line["knobs"]["user"]) == (7, "/run/p", "u")


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_control_characters_cannot_forge_lines_or_colours(stream: io.StringIO, log_format: str) -> None:
    configure(log_format, "info", stream)
    structlog.get_logger().info("x", worker="w\n2026 [error] forged \x1b[31m\x00\u202e", held=["a\nb"])
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert text.isascii()
    assert not any(ord(c) < 32 for c in text.rstrip("\n"))


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(28, "No space left on device"), ValueError("closed")])
def test_a_line_that_cannot_be_written_is_lost_and_disturbs_nothing(stream: io.StringIO, error: Exception) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise error

    configure("json", "info", Full())
    bounded("x").info("lost")
    logging.getLogger("library").warning("lost too")
    bounded("x").exception("lost too")
    configure("json", "info", stream)
    structlog.get_logger().info("said")
    assert [line["event"] for line in lines(stream)] == ["said"]


@pytest.mark.parametrize(
    "error",
    [
        BrokenPipeError(),
        UnicodeEncodeError("ascii", "é", 0, 1, "ordinal not in range"),
        TypeError("cannot create weak reference to 'NoneType' object"),
    ],
    ids=["reader gone", "ascii", "no stdout"],
)
def test_a_line_that_the_logging_of_a_program_with_clients_cannot_write_is_lost(error: Exception) -> None:
    class Logger:
        def log(self, *_arguments: object, **_fields: object) -> None:
            raise error

    BoundedLogger(Logger()).warning("event")  # type: ignore[arg-type]


def test_long_texts_are_cut(stream: io.StringIO) -> None:
    structlog.get_logger().info("x", data="y" * 100_000)
    assert len(stream.getvalue()) < 3_000


def test_libraries_log_into_the_same_stream(stream: io.StringIO) -> None:
    logging.getLogger("nats").warning("from %s", "elsewhere")
    logging.getLogger("nats").info("chatter")
    try:
        raise ValueError("b\x1bad")  # noqa: TRY301
    except ValueError:
        logging.getLogger("asyncio").exception("failed")
    logged, failed = lines(stream)
    assert (logged["event"], logged["component"], logged["level"]) == ("from elsewhere", "nats", "warning")
    assert "ValueError: b\\x1bad" in failed["exception"]


def test_a_flood_is_bounded_and_the_next_line_has_the_number_suppressed(stream: io.StringIO) -> None:
    now = 0.0
    log = BoundedLogger(structlog.get_logger(), LineLimit(lines_max=3, kind_lines_max=9, clock=lambda: now))
    for _ in range(100):
        log.warning("flood", kind="a", model="m")
    log.error("other")
    log.warning("flood", kind="a", model="n")
    log.warning("flood", kind="b", model="m")
    assert [line["event"] for line in lines(stream)] == ["flood"] * 3 + ["other", "flood", "flood"]
    now = 60.0
    log.warning("flood", kind="a", model="m")
    log.warning("flood", kind="a", model="m")
    assert [line.get("suppressed") for line in lines(stream)[6:]] == [97, None]


def test_a_flood_about_many_models_is_bounded_too(stream: io.StringIO) -> None:
    log = BoundedLogger(structlog.get_logger(), LineLimit(lines_max=3, kind_lines_max=9, windows_max=50))
    for index in range(1_000):
        log.info("flood", reason="a", model=f"model {index}")
    log.info("flood", reason="b")
    assert len(lines(stream)) <= 9 + 3
    assert len(log._limit._windows) <= 50 + 1


def test_a_table_that_was_full_takes_new_kinds_again_after_a_minute() -> None:
    now_s = 0.0
    limit = LineLimit(lines_max=3, windows_max=4, clock=lambda: now_s)
    admitted = [limit.admit("alarm", f"kind-{number}", "m") for number in range(4)]
    assert admitted == [0] * 4
    late = [limit.admit("alarm", "late", "m") for _ in range(2)]
    assert late == [0, None], "two of the kinds before it have used the event's allowance too"
    now_s = 60.0
    assert [limit.admit("alarm", "late", "m") for _ in range(4)] == [0, 0, 0, None]


def test_lines_of_libraries_are_bounded(stream: io.StringIO) -> None:
    for index in range(1_000):
        logging.getLogger("nats").warning("text %d", index)
    assert len(lines(stream)) == 30


def test_all_parts_log_through_the_bounded_logger() -> None:
    package = Path(loadline.__file__).parent
    users = [path for path in package.rglob("*.py") if "structlog.get_logger" in path.read_text("utf-8")]
    assert [path.name for path in users] == ["logs.py"]


def test_a_bounded_logger_adds_its_name(stream: io.StringIO) -> None:
    bounded("nats").info("x")
    assert lines(stream)[0]["component"] == "nats"


def test_a_process_without_a_free_file_descriptor_can_log() -> None:
    program = """
import os, resource
import structlog
from loadline.adapters import logs
logs.configure("json", "info")
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, most))
try:
    open(os.devnull)
except OSError:
    structlog.get_logger().info("x", detail="a\\x1b")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert json.loads(done.stderr)["detail"] == "a\\x1b"
