"""Reading of configurations from a file and the environment, with errors that name place and remedy."""

import os
from pathlib import Path

import msgspec
import pytest

from loadline.config import Config, load, parse, validate
from loadline.errors import ConfigError
from tests.support.config_texts import BASE, DECODE, config_error, model


def test_one_model_is_enough_and_gives_no_warning() -> None:
    config = parse(BASE, "x")
    assert validate(config) == []
    assert config.nats.servers == ("nats://127.0.0.1:4222",)
    assert config.models[0].pools[1].replicas_max == 8


def test_every_section_can_be_set_in_a_file() -> None:
    text = """
    [agent]
    name = "a-1"
    log_format = "json"
    [fleet]
    quorum_ratio = 1
    [[models]]
    name = "m"
    gpu_budget_max = 12
    no_operation = true
    [models.guardrails]
    step_up_max = 2
    [models.threshold]
    adjustment_interval_ms = 5000
    [[models.pools]]
    name = "a"
    role = "aggregated"
    """
    config = parse(text, "x")
    assert config.agent.name == "a-1"
    assert config.fleet.quorum_ratio == 1.0
    assert config.models[0].effective_guardrails.step_up_max == 2
    assert config.models[0].knobs_of("threshold").adjustment_interval_ms == 5000


SYNTAX = [
    ("[agent\nname = 1", "loadline.toml, line 1"),
    ('[agent]\nname = "x"\nname = "y"', "loadline.toml, line 3"),
    ("a = ", "loadline.toml, line 1"),
    ("a = [", "loadline.toml"),
    ("[agent]\nport = 1.", "loadline.toml"),
    ("a = " + "9" * 5000, "loadline.toml"),
]


@pytest.mark.parametrize(("text", "place"), SYNTAX)
def test_syntax_errors_name_file_and_line(text: str, place: str) -> None:
    error = config_error(text, base="")
    assert error.place.startswith(place)
    assert "TOML" in error.problem


def test_nesting_bombs_are_refused() -> None:
    assert "nested" in config_error("a = " + "[" * 100_000, base="").problem


SHAPES = [
    ("[nats]\nserver = []", "nats.server", "not a known key", "Did you mean servers?"),
    ("[natz]\n", "natz", "not a known key", "Did you mean nats?"),
    (
        "[agent]\nqqqq = 1",
        "agent.qqqq",
        "not a known key",
        "Known are: log_format, log_level, name, namespace, only, reload_interval_ms, root.",
    ),
    ('[http]\nport = "9464"', "http.port", "is '9464'", "a whole number from 0 to 65535"),
    ("[http]\nport = 70000", "http.port", "is 70000", "a whole number from 0 to 65535"),
    ("[http]\nport = true", "http.port", "is true", "a whole number from 0 to 65535"),
    ("[fleet]\nquorum_ratio = 0.0", "fleet.quorum_ratio", "is 0.0", "a number, above 0, at most 1"),
    ("[fleet]\nquorum_ratio = nan", "fleet.quorum_ratio", "is nan", "a number, above 0, at most 1"),
    ("[fleet]\nstale_after_ms = 0", "fleet.stale_after_ms", "is 0", "a whole number, 1 or more"),
    ("[fleet]\nstale_after_ms = 9007199254740993", "fleet.stale_after_ms", "is 9007199254740993", "at most 2^53"),
    ("[nats]\nservers = []", "nats.servers", "is <redacted", "a list of 1 or more, each text"),
    ('[nats]\nservers = "nats://a"', "nats.servers", "is <redacted", "a list of 1 or more, each text"),
    ('[agent]\nlog_format = "xml"', "agent.log_format", "is 'xml'", "one of auto, console, json"),
    ("[etcd]\ninsecure = 1", "etcd.insecure", "is 1", "true or false"),
    ('[agent]\nroot = "a b"', "agent.root", "is 'a b'", "text"),
    ("agent = 3", "agent", "is 3", "a table"),
    ("models = []", "models", "is []", "a list of 1 to 1024, each a table"),
    ("", "models", "is missing", "a list of 1 to 1024, each a table"),
    ("[[models]]\n" * 10_000, "models", "has 10000 entries", "a list of 1 to 1024, each a table"),
    ("[nats]\n" + "a." * 20_000 + "a = 1", "loadline.toml, line 2", "has a key of more than 32 parts", "Shorten"),
    ('"\\"".' * 32 + "a = 1", "loadline.toml, line 1", "has a key of more than 32 parts", "Shorten"),
    ("[" + '"a" . ' * 20_000 + "a]", "loadline.toml, line 1", "has a key of more than 32 parts", "Shorten"),
    ("nats = {" + "'a'." * 20_000 + "a = 1}", "loadline.toml, line 1", "has a key of more than 32 parts", "Shorten"),
    (model(), "models[0].pools", "is missing", "a list"),
    (model("", 'name = "a"'), "models[0].pools[0].role", "is missing", "one of aggregated, decode, encode, prefill"),
    (
        model("", 'name = "a"\nrole = "both"'),
        "models[0].pools[0].role",
        "is 'both'",
        "one of aggregated, decode, encode, prefill",
    ),
    (model("", 'name = ""\nrole = "decode"'), "models[0].pools[0].name", "is ''", "text of 1 to 100 characters"),
    (model("gpu_budget_max = 0", DECODE), "models[0].gpu_budget_max", "is 0", "a whole number, 1 or more"),
    (
        model("", DECODE + "\nreplicas_max = 1000001"),
        "models[0].pools[0].replicas_max",
        "is 1000001",
        "a whole number from 1 to 1000000",
    ),
    (
        model("", DECODE + "\nschedules = [{start = '0 8 * * *', end = '0 9 * * *', replicas_min = 1000001}]"),
        "models[0].pools[0].schedules[0].replicas_min",
        "is 1000001",
        "a whole number from 1 to 1000000",
    ),
    (
        model("", DECODE + "\nreplica_max = 3"),
        "models[0].pools[0].replica_max",
        "not a known key",
        "Did you mean replicas_max?",
    ),
    (
        model("", DECODE) + "[models.threshold]\ndecode_kv_scale_up_threshold = inf",
        "models[0].threshold.decode_kv_scale_up_threshold",
        "is inf",
        "a number, 0 or more, finite",
    ),
    (
        model("static.replicas = {d = 1.5}", DECODE),
        "models[0].static.replicas.d",
        "is 1.5",
        "a whole number, 0 or more",
    ),
    (
        model("kpa.scale_down_delay_ms = 3600001", DECODE),
        "models[0].kpa.scale_down_delay_ms",
        "is 3600001",
        "a whole number from 0 to 3600000",
    ),
    (
        model("", DECODE) + "[models.guardrails]\nstep_up = 1",
        "models[0].guardrails.step_up",
        "not a known key",
        "Did you mean step_up_max?",
    ),
]


@pytest.mark.parametrize(("text", "place", "problem", "remedy"), SHAPES)
def test_an_invalid_key_or_value_is_named_with_the_accepted_values(
    text: str, place: str, problem: str, remedy: str
) -> None:
    error = config_error(text, base="")
    assert error.place == place
    assert problem in error.problem
    assert remedy in error.remedy


def test_long_values_are_shortened() -> None:
    assert len(config_error(f'[http]\nport = "{"x" * 5000}"').problem) < 80


ENVIRONMENT = [
    ("LOADLINE__NATS__SERVERS", '["nats://a:1", "nats://b:1"]', ("nats", "servers"), ("nats://a:1", "nats://b:1")),
    ("LOADLINE__ETCD__USER", "root", ("etcd", "user"), "root"),
    ("LOADLINE__ETCD__USER", '"root"', ("etcd", "user"), "root"),
    ("LOADLINE__AGENT__NAME", "123", ("agent", "name"), "123"),
    ("LOADLINE__ETCD__USER", "a\nuser2 = 1", ("etcd", "user"), "a\nuser2 = 1"),
    ("LOADLINE__HTTP__PORT", "0", ("http", "port"), 0),
    ("LOADLINE__ETCD__INSECURE", "true", ("etcd", "insecure"), True),
    ("LOADLINE__FLEET__QUORUM_RATIO", "0.5", ("fleet", "quorum_ratio"), 0.5),
]


@pytest.mark.parametrize(("variable", "text", "path", "value"), ENVIRONMENT)
def test_variables_override_the_file(variable: str, text: str, path: tuple[str, str], value: object) -> None:
    config = parse("[agent]\nname = 'file'\n" + BASE, "x", {variable: text, "LOADLINE_OTHER": "ignored"})
    assert getattr(getattr(config, path[0]), path[1]) == value


def test_models_can_come_from_the_environment() -> None:
    value = '[{name = "m", pools = [{name = "a", role = "aggregated"}]}]'
    assert parse("", "x", {"LOADLINE__MODELS": value}).models[0].pools[0].name == "a"


@pytest.mark.parametrize(
    ("variable", "value", "remedy"),
    [
        ("LOADLINE__NATZ__SERVERS", "[]", "Did you mean nats?"),
        ("LOADLINE__NATS__SERVER", "[]", "Did you mean servers?"),
        ("LOADLINE__MODELS__NAME", "x", "LOADLINE__MODELS"),
        ("LOADLINE__", "x", "Known are"),
    ],
)
def test_unknown_variables_are_refused(variable: str, value: str, remedy: str) -> None:
    error = config_error("", environ={variable: value})
    assert error.place == f"environment variable {variable}"
    assert remedy in error.remedy


def test_invalid_values_of_variables_are_refused_like_those_of_the_file() -> None:
    assert config_error("", environ={"LOADLINE__HTTP__PORT": "many"}).place == "http.port"
    assert config_error("agent = 1\n" + BASE, base="", environ={"LOADLINE__AGENT__NAME": "x"}).place == "agent"


def test_load_reads_a_file_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "loadline.toml"
    path.write_text(BASE)
    monkeypatch.setenv("LOADLINE__HTTP__PORT", "1234")
    assert load(path).http.port == 1234
    assert load(path, {}).http.port == 9464


def test_a_byte_order_mark_and_crlf_are_read_over(tmp_path: Path) -> None:
    path = tmp_path / "loadline.toml"
    path.write_text(BASE.replace("\n", "\r\n"), "utf-8-sig", newline="")
    assert load(path, {}).models == parse(BASE, "").models


@pytest.mark.parametrize(
    ("data", "words"), [(b"a\n\xff", "line 2: is not UTF-8"), (b"#" * 1_048_577, "larger"), (None, "cannot be read")]
)
def test_an_unreadable_file_is_refused_with_the_reason(tmp_path: Path, data: bytes | None, words: str) -> None:
    path = tmp_path / "loadline.toml"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


def test_a_configuration_is_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.toml")
    for path, what in ((tmp_path / "fifo.toml", "not a regular file"), (tmp_path, "a folder")):
        with pytest.raises(ConfigError, match=f"cannot be read: it is {what}"):
            load(path, {})


def test_a_config_survives_a_json_round_trip() -> None:
    loaded = parse(BASE, "x")
    config = Config(**{name: getattr(loaded, name) for name in Config.__struct_fields__})
    assert msgspec.json.decode(msgspec.json.encode(config), type=Config) == config


def test_paths_of_profiles_are_relative_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "loadline.toml"
    file.write_text(
        '[[models]]\nname = "m"\n[[models.pools]]\nname = "p"\nrole = "prefill"\nprefill_profile = "x/p.npz"\n'
    )
    assert load(file, {}).models[0].pools[0].prefill_profile == str(tmp_path / "x" / "p.npz")
