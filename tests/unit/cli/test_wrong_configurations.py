"""Configurations as users get them wrong. Each message names file, line and key, and says what to write instead."""

import re
from pathlib import Path
from typing import Final

import pytest

from loadline.cli.main import main

GOOD: Final = """\
[nats]
servers = ["nats://127.0.0.1:4222"]

[etcd]
endpoints = ["http://127.0.0.1:2379"]

[http]
host = "127.0.0.1"

[[models]]
name = "m"
planner = "auto"
objectives = { ttft_ms = 500, itl_ms = 50 }
pools = [
  { name = "prefill", role = "prefill", replicas_max = 8 },
  { name = "decode", role = "decode", replicas_max = 8 },
]
"""
MODEL, OBJECTIVES, PREFILL, DECODE = 10, 13, 15, 16
APPENDED: Final = GOOD.count("\n") + 1
"""Line of what is appended."""

SECOND: Final = """\
[[models]]
name = "n"
scale_to_zero_after_ms = 300
pools = [{ name = "a", role = "aggregated", replicas_min = 0 }]
"""

Edit = tuple[str, str] | str
"""Text of the good file and its replacement, or text to append."""

Message = tuple[int, str, str]
"""Line, key, and words of the remedy."""

ERRORS: Final[list[tuple[Edit, int, str, str]]] = [
    (("endpoints", "endpoint"), 5, "etcd.endpoint", "Did you mean endpoints?"),
    (("nats://", "http://"), 2, "nats.servers[0]", "Write nats://host:port"),
    ((":4222", ":42222222"), 2, "nats.servers[0]", "Write nats://host:port"),
    (("nats://127", "nats://me:secret@127"), 2, "nats.servers[0]", "Use user and password_file"),
    (('["nats://127.0.0.1:4222"]', '"nats://127.0.0.1:4222"'), 2, "nats.servers", "Write a list"),
    (("http://127.0.0.1:2379", "http://10.0.0.5:2379"), 5, "etcd.endpoints[0]", "Use https://"),
    (('host = "127.0.0.1"', "port = 99999"), 8, "http.port", "Write a whole number from 0 to 65535"),
    (('name = "m"\n', ""), MODEL, "models[0].name", "Write text"),
    (("[[models]]", "[models]"), MODEL, "models", "is a table. Write a list of 1 to 1024, each a table, headed [["),
    (("objectives = {", "objective = {"), OBJECTIVES, "models[0].objective", "Did you mean objectives?"),
    (("objectives = { ttft_ms = 500,", "ttft_ms = 500 #"), OBJECTIVES, "models[0].ttft_ms", "a key of objectives."),
    (('planner = "auto"', "replicas_max = 9"), 12, "models[0].replicas_max", "It is a key of pools."),
    ("[fleet]\ngpu_budget = 4\n", APPENDED + 1, "fleet.gpu_budget", "Did you mean gpu_budget_max or gpu_budget_min?"),
    (
        ('"prefill", replicas', '"prefill", profile = "p", replicas'),
        PREFILL,
        "models[0].pools[0].profile",
        "Did you mean decode_profile or prefill_profile?",
    ),
    (('"auto"', '"automatic"'), 12, "models[0].planner", "Known are: apa, auto, hpa"),
    (("ttft_ms = 500", 'ttft_ms = "500"'), OBJECTIVES, "models[0].objectives.ttft_ms", "Write a number"),
    (("ttft_ms = 500", 'ttft_ms = "500ms"'), OBJECTIVES, "models[0].objectives.ttft_ms", "Write a number"),
    (("ttft_ms = 500", "ttft_ms = -1"), OBJECTIVES, "models[0].objectives.ttft_ms", "Write a number, above 0"),
    (("ttft_ms", "ttft_s"), OBJECTIVES, "models[0].objectives.ttft_s", "Did you mean ttft_ms?"),
    (("ttft_ms = 500", "attainment = 95"), OBJECTIVES, "models[0].objectives.attainment", "from 0 to 0.999"),
    (('role = "decode"', 'role = "decod"'), DECODE, "models[0].pools[1].role", "Write one of"),
    (('name = "decode"', 'name = "prefill"'), 14, "models[0].pools", "Give every pool a unique name"),
    ((', role = "prefill"', ""), PREFILL, "models[0].pools[0].role", "Write one of"),
    (('role = "decode"', 'role = "aggregated"'), 14, "models[0].pools", "Make all pools aggregated"),
    (('  { name = "decode", role = "decode", replicas_max = 8 },\n', ""), 14, "models[0].pools", 'role = "decode"'),
    (('{ name = "decode", role = "decode", replicas_max = 8 }', '"decode"'), DECODE, "models[0].pools[1]", "a table"),
    (('"prefill", replicas_max = 8', '"prefill", replicas_max = 0'), PREFILL, "models[0].pools[0].replicas_max", "1"),
    (('"prefill", repl', '"prefill", replicas_min = 9, repl'), PREFILL, "models[0].pools[0].replicas_min", "raise"),
    (('"prefill", replicas', '"prefill", gpus = 2, replicas'), PREFILL, "models[0].pools[0].gpus", "gpus_per_worker"),
    (('"prefill", repl', '"prefill", accelerator = "h", repl'), PREFILL, "models[0].pools[0].accelerator", "Add"),
    ("[models.guard]\nstep_up_max = 1\n", APPENDED, "models[0].guard", "It was renamed: write models[0].guardrails"),
    ("[guardrails]\nstep_up_max = 1\n", APPENDED, "guardrails", "Write it in a model: [models.guardrails]"),
    ("[fleet]\ngpu_budget_min = 10\ngpu_budget_max = 4\n", APPENDED + 1, "fleet.gpu_budget_min", "Lower it or raise"),
    ("[fleet]\ngpu_budget_max = 1\n", APPENDED + 1, "fleet.gpu_budget_max", "Set it to 2 or more"),
    ("[allocation]\ncapacity = { h100 = 8 }\n", APPENDED + 1, "allocation.capacity.h100", "Add an [[accelerators]]"),
    ('[agent]\nlog_format = "xml"\n', APPENDED + 1, "agent.log_format", "Write one of auto, console, json"),
    ("[leadership]\nmargin_ms = 20000\n", APPENDED + 1, "leadership.margin_ms", "raise lease_ttl_s"),
    ('[[models]]\nname = "m"\npools = [{ name = "a", role = "aggregated" }]\n', MODEL, "models", "unique name"),
    ("[journal]\nbytes_max = 10\n", APPENDED, "journal.segment_bytes_max", "raise bytes_max"),
]  # fmt: skip
WARNINGS: Final[list[tuple[Edit, int, str, str]]] = [
    (("ttft_ms = 500", "ttft_ms = 0.5"), OBJECTIVES, "models[0].objectives.ttft_ms", "Write milliseconds: 500"),
    (("itl_ms = 50", "itl_ms = 0.05"), OBJECTIVES, "models[0].objectives.itl_ms", "Write milliseconds: 50"),
    (
        "[models.guardrails]\nstabilisation_ms = 60\n",
        APPENDED + 1,
        "models[0].guardrails.stabilisation_ms",
        "Write milliseconds: 60000",
    ),
    (
        ('"prefill", replicas', '"prefill", start_deadline_ms = 30, replicas'),
        PREFILL,
        "models[0].pools[0].start_deadline_ms",
        "Write milliseconds: 30000",
    ),
    ("[drain]\nttl_ms = 600\n", APPENDED + 1, "drain.ttl_ms", "Write milliseconds: 600000"),
    (
        (
            '"decode", replicas_max = 8',
            '"decode", linear = { alpha = 0.012, beta = 0.0002, gamma = 20, delta = 0.1, max_kv_tokens = 1e6 }',
        ),
        DECODE,
        "models[0].pools[1].linear",
        "Write milliseconds: alpha = 12, beta = 0.2",
    ),
    (
        (
            '"prefill", replicas_max = 8',
            '"prefill", linear = { alpha = 12, beta = 0.2, gamma = 0.02, delta = 0.0001, max_kv_tokens = 1e6 }',
        ),
        PREFILL,
        "models[0].pools[0].linear",
        "Write milliseconds: gamma = 20, delta = 0.1",
    ),
    (
        ('"prefill", replicas', '"prefill", prefill_profile = "none.npz", replicas'),
        PREFILL,
        "models[0].pools[0].prefill_profile",
        "none.npz: cannot be read",
    ),
    (('host = "127.0.0.1"', 'host = "0.0.0.0"'), 8, "http.host", "Set 127.0.0.1, or restrict access by a firewall"),
    (
        SECOND,
        APPENDED + 2,
        "models[1].scale_to_zero_after_ms",
        "300 s are 300000",
    ),
    (
        ('"auto"\n', '"auto"\nthreshold = { adjustment_interval_ms = 15_000 }\n'),
        13,
        "models[0].threshold",
        'Remove it, or set planner = "threshold"',
    ),
]


def written(tmp_path: Path, edit: Edit) -> Path:
    path = tmp_path / "loadline.toml"
    if isinstance(edit, str):
        text = GOOD + edit
    else:
        assert edit[0] in GOOD
        text = GOOD.replace(*edit, 1)
    path.write_text(text, "utf-8")
    return path


def test_the_good_configuration_has_neither_errors_nor_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, "")
    assert main(["check", "--config", str(path)]) == 0
    assert capsys.readouterr().out.endswith(f"{path}: valid, 0 warnings\n")


@pytest.mark.parametrize(("edit", "message"), [(edit, tuple(message)) for edit, *message in ERRORS])
def test_an_error_names_file_line_key_and_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], edit: Edit, message: Message
) -> None:
    line, key, remedy = message
    path = written(tmp_path, edit)
    assert main(["check", "--config", str(path)]) == 2
    [printed] = capsys.readouterr().err.splitlines()
    assert printed.startswith(f"loadline: {path}, line {line}: {key}: ")
    assert remedy in printed
    assert "secret" not in printed
    assert re.search(r"[.?]$", printed)


@pytest.mark.parametrize(("edit", "message"), [(edit, tuple(message)) for edit, *message in WARNINGS])
def test_a_value_that_cannot_be_meant_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], edit: Edit, message: Message
) -> None:
    line, key, remedy = message
    path = written(tmp_path, edit)
    assert main(["check", "--config", str(path)]) == 0
    printed = [text for text in capsys.readouterr().out.splitlines() if text.startswith("warning: ")]
    assert [text for text in printed if text.startswith(f"warning: {path}, line {line}: {key}: ") and remedy in text]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models:\n  - name: m\n", "line 1, column 7: is not TOML: Expected '=' after a key"),
        ('[[models]]\nname = "m\n', "line 2, column 10: is not TOML: Illegal character"),
        ("[nats]\n[nats]\n", "is not TOML: Cannot declare"),
        ("", "models: is missing. Write a list of 1 to 1024, each a table, headed [[models]]."),
        ('{"models": []}', "line 1, column 1: is not TOML"),
    ],
)
def test_a_file_that_is_no_configuration_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    path = tmp_path / "loadline.toml"
    path.write_text(text, "utf-8")
    assert main(["check", "--config", str(path)]) == 2
    [printed] = capsys.readouterr().err.splitlines()
    assert printed.startswith(f"loadline: {path}")
    assert words in printed


@pytest.mark.parametrize("command", ["run", "check", "status", "doctor", "step"])
def test_every_command_refuses_it_with_the_same_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    path = written(tmp_path, ('"auto"', "3"))
    assert main([command, "--config", str(path)]) == 2
    assert f"{path}, line 12: models[0].planner: is 3. Write text." in capsys.readouterr().err
