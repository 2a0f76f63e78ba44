from pathlib import Path

import msgspec
import pytest

from loadline.config import Config, describe, load, parse, validate
from loadline.errors import ConfigError

PLANNERS = ("hpa", "kpa", "load", "sla", "static", "threshold", "throughput")
BASE = """
[[models]]
name = "llama"
[[models.pools]]
name = "prefill"
role = "prefill"
[[models.pools]]
name = "decode"
role = "decode"
"""


def judge(text: str, *, base: str = BASE, environ: dict[str, str] | None = None) -> list[str]:
    return validate(parse(base + text, "loadline.toml", environ or {}), PLANNERS)


def refusal(text: str, *, base: str = BASE, environ: dict[str, str] | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        judge(text, base=base, environ=environ)
    assert caught.value.remedy.endswith((".", "?"))
    return caught.value


def model(body: str = "", *pools: str) -> str:
    return f'[[models]]\nname = "m"\n{body}\n' + "".join(f"[[models.pools]]\n{pool}\n" for pool in pools)


AGGREGATED = 'name = "a"\nrole = "aggregated"'
DECODE = 'name = "d"\nrole = "decode"'


def test_defaults_need_only_a_model_and_warn_of_nothing() -> None:
    config = parse(BASE, "x")
    assert validate(config, PLANNERS) == []
    assert config.nats.servers == ("nats://127.0.0.1:4222",)
    assert config.models[0].pools[1].replicas_max == 8


def test_everything_can_be_written_in_a_file() -> None:
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
    [models.guard]
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
    assert config.models[0].guard.step_up_max == 2
    assert config.models[0].threshold.adjustment_interval_ms == 5000


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
    error = refusal(text, base="")
    assert error.place.startswith(place)
    assert "TOML" in error.problem


def test_nesting_bombs_are_refused() -> None:
    assert "nested" in refusal("a = " + "[" * 100_000, base="").problem


SHAPES = [
    ("[nats]\nserver = []", "nats.server", "not a key", "Did you mean servers?"),
    ("[natz]\n", "natz", "not a key", "Did you mean nats?"),
    ("[agent]\nqqqq = 1", "agent.qqqq", "not a key", "Known are: log_format, log_level, name, namespace, root."),
    ('[http]\nport = "9464"', "http.port", "is '9464'", "a whole number from 0 to 65535"),
    ("[http]\nport = 70000", "http.port", "is 70000", "a whole number from 0 to 65535"),
    ("[http]\nport = true", "http.port", "is true", "a whole number from 0 to 65535"),
    ("[fleet]\nquorum_ratio = 0.0", "fleet.quorum_ratio", "is 0.0", "a number, above 0, at most 1"),
    ("[fleet]\nquorum_ratio = nan", "fleet.quorum_ratio", "is nan", "a number, above 0, at most 1"),
    ("[fleet]\nstale_after_ms = 0", "fleet.stale_after_ms", "is 0", "a whole number, 1 or more"),
    ("[fleet]\nstale_after_ms = 9007199254740993", "fleet.stale_after_ms", "is 9007199254740993", "at most 2^53"),
    ("[nats]\nservers = []", "nats.servers", "is []", "a list of 1 or more, each text"),
    ('[nats]\nservers = "nats://a"', "nats.servers", "is 'nats://a'", "a list of 1 or more, each text"),
    ('[agent]\nlog_format = "xml"', "agent.log_format", "is 'xml'", "one of auto, console, json"),
    ("[etcd]\ninsecure = 1", "etcd.insecure", "is 1", "true or false"),
    ('[agent]\nroot = "a b"', "agent.root", "is 'a b'", "text"),
    ("agent = 3", "agent", "is 3", "a table"),
    ("models = []", "models", "is []", "a list of 1 or more, each a table"),
    ("", "models", "is missing", "a list of 1 or more, each a table"),
    (model(), "models[0].pools", "is missing", "a list"),
    (model("", 'name = "a"'), "models[0].pools[0].role", "is missing", "one of aggregated, decode, prefill"),
    (
        model("", 'name = "a"\nrole = "both"'),
        "models[0].pools[0].role",
        "is 'both'",
        "one of aggregated, decode, prefill",
    ),
    (model("", 'name = ""\nrole = "decode"'), "models[0].pools[0].name", "is ''", "text of 1 to 100 characters"),
    (model("gpu_budget_max = 0", DECODE), "models[0].gpu_budget_max", "is 0", "a whole number, 1 or more"),
    (
        model("", DECODE + "\nreplica_max = 3"),
        "models[0].pools[0].replica_max",
        "not a key",
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
        "models[0].static.replicas",
        "is {'d': 1.5}",
        "a table of names, each with a whole number, 0 or more",
    ),
    (
        model("kpa.scale_down_delay_ms = 3600001", DECODE),
        "models[0].kpa.scale_down_delay_ms",
        "is 3600001",
        "a whole number from 0 to 3600000",
    ),
    (
        model("", DECODE) + "[models.guard]\nstep_up = 1",
        "models[0].guard.step_up",
        "not a key",
        "Did you mean step_up_max?",
    ),
]


@pytest.mark.parametrize(("text", "place", "problem", "remedy"), SHAPES)
def test_a_wrong_key_or_value_is_named_with_what_is_legal(text: str, place: str, problem: str, remedy: str) -> None:
    error = refusal(text, base="")
    assert error.place == place
    assert problem in error.problem
    assert remedy in error.remedy


def test_long_values_are_shown_in_short() -> None:
    assert len(refusal(f'[http]\nport = "{"x" * 5000}"').problem) < 80


CONTRADICTIONS = [
    ("", model("", DECODE) * 2, "models", "'m' is there 2 times", "own name"),
    ("", model("", DECODE, DECODE), "models[0].pools", "'d' is there 2 times", "own name"),
    (
        "",
        model("", DECODE + "\nreplicas_min = 9"),
        "models[0].pools[0].replicas_min",
        "above replicas_max 8",
        "replicas_max",
    ),
    ("", model("", AGGREGATED, DECODE), "models[0].pools", "mixes aggregated with decode", "aggregated"),
    ("", model("", 'name = "p"\nrole = "prefill"'), "models[0].pools", "no decode", 'role = "decode"'),
    ("", model('planner = "treshold"', DECODE), "models[0].planner", "no planner", "Did you mean threshold?"),
    (
        "",
        model('planner = "q"', DECODE),
        "models[0].planner",
        "no planner",
        "Known are: hpa, kpa, load, sla, static, threshold, throughput",
    ),
    (
        "",
        model("gpu_budget_min = 5\ngpu_budget_max = 4", DECODE),
        "models[0].gpu_budget_min",
        "above gpu_budget_max 4",
        "gpu_budget_max",
    ),
    (
        "",
        model("gpu_budget_max = 3", DECODE + "\ngpus_per_worker = 2\nreplicas_min = 2"),
        "models[0].gpu_budget_max",
        "fewer than the 4",
        "replicas_min",
    ),
    ("", model("gpu_budget_min = 9", DECODE), "models[0].gpu_budget_min", "more than the 8", "replicas_max"),
    (
        "[models.threshold]\nprefill_queue_scale_up_threshold = 0.2",
        BASE,
        "models[0].threshold.prefill_queue_scale_up_threshold",
        "0.2 is not above",
        "gap",
    ),
    (
        "[models.threshold]\ndecode_kv_scale_down_threshold = 0.95",
        BASE,
        "models[0].threshold.decode_kv_scale_up_threshold",
        "0.9 is not above",
        "gap",
    ),
    (
        "",
        model('planner = "static"\nstatic.replicas = {e = 1}', DECODE),
        "models[0].static.replicas.e",
        "no pool of this model",
        "Known are: d.",
    ),
    (
        "",
        model('planner = "static"\nstatic.replicas.d = 9', DECODE),
        "models[0].static.replicas.d",
        "9 is not between replicas_min 1 and replicas_max 8",
        "bounds",
    ),
    (
        "",
        model('planner = "static"\nstatic.replicas.d = 0', DECODE),
        "models[0].static.replicas.d",
        "0 is not between",
        "bounds",
    ),
    (
        "",
        model('planner = "hpa"\nhpa.kv_usage_target = 0', DECODE),
        "models[0].hpa.kv_usage_target",
        "decode workers without a metric",
        "above 0",
    ),
    (
        "",
        model('planner = "hpa"\nhpa.kv_usage_target = 0\nhpa.waiting_requests_target = 0', AGGREGATED),
        "models[0].hpa.kv_usage_target",
        "aggregated workers without a metric",
        "above 0",
    ),
    (
        "",
        model('planner = "hpa"\nhpa.prefill_requests_target = 0', 'name = "p"\nrole = "prefill"', DECODE),
        "models[0].hpa.prefill_requests_target",
        "prefill workers without a metric",
        "above 0",
    ),
    ("[leadership]\nmargin_ms = 10000", BASE, "leadership.margin_ms", "no time to lead", "lease_ttl_s"),
    ("[journal]\nbytes_max = 1", BASE, "journal.segment_bytes_max", "above bytes_max 1", "bytes_max"),
    ("[decisions]\nretry_backoff_max_ms = 1", BASE, "decisions.retry_backoff_ms", "above", "retry_backoff_max_ms"),
    (
        "[decisions]\nannounce_interval_max_ms = 1",
        BASE,
        "decisions.announce_interval_ms",
        "above",
        "announce_interval_max_ms",
    ),
    ('[etcd]\nendpoints = ["http://etcd:2379"]', BASE, "etcd.endpoints[0]", "not encrypted", "etcd.insecure = true"),
    ('[etcd]\nendpoints = ["etcd:2379"]', BASE, "etcd.endpoints[0]", "not http://", "http://host:port"),
    ('[nats]\nservers = ["http://a:1"]', BASE, "nats.servers[0]", "not nats:// or tls://", "nats://host:port"),
    ('[nats]\nservers = ["nats://a:port"]', BASE, "nats.servers[0]", "not a URL", "nats://host:port"),
    ('[nats]\nservers = ["nats://[::1"]', BASE, "nats.servers[0]", "not a URL", "nats://host:port"),
    ('[nats]\nservers = ["nats://"]', BASE, "nats.servers[0]", "not nats:// or tls://", "nats://host:port"),
    ('[nats]\nuser = "u"', BASE, "nats.password_file", "missing while user is set", "[nats]"),
    ('[etcd]\npassword_file = "f"', BASE, "etcd.user", "missing while password_file is set", "[etcd]"),
    ('[etcd]\ncert_file = "f"', BASE, "etcd.key_file", "missing", "together"),
    ('[etcd]\nkey_file = "f"', BASE, "etcd.cert_file", "missing", "together"),
    (
        '[nats]\nuser = "u"\npassword_file = "f"\ncredentials_file = "c"',
        BASE,
        "nats.credentials_file",
        "both set",
        "one way",
    ),
    ('[agent]\nroot = "a..b"', BASE, "agent.root", "empty token", "one dot"),
]


@pytest.mark.parametrize(("text", "base", "place", "problem", "remedy"), CONTRADICTIONS)
def test_contradictions_name_key_and_remedy(text: str, base: str, place: str, problem: str, remedy: str) -> None:
    error = refusal(text, base=base)
    assert error.place == place
    assert problem in error.problem
    assert remedy in error.remedy


@pytest.mark.parametrize(
    "text", ['[nats]\nservers = ["nats://u:hunter2@h:1"]', '[etcd]\nendpoints = ["https://hunter2@h:1"]']
)
def test_a_password_in_a_url_is_refused_and_not_repeated(text: str) -> None:
    error = refusal(text)
    assert "holds a login" in error.problem
    assert "password_file" in error.remedy
    assert "hunter2" not in str(error)


FIXED = "\nreplicas_min = 3\nreplicas_max = 3"
WARNINGS = [
    ('[http]\nhost = "0.0.0.0"', BASE, "http.host", "127.0.0.1"),
    ("[leadership]\nretry_ms = 5000", BASE, "leadership.retry_ms", "2000 or less"),
    ("[etcd]\ntimeout_ms = 8000", BASE, "etcd.timeout_ms", "leadership.lease_ttl_s"),
    ("[drain]\nttl_ms = 840000", BASE, "decisions.ttl_ms", "above 900000"),
    ("[runtime]\ninbox_frames_max = 10", BASE, "runtime.batch_max", "inbox_frames_max"),
    ('[nats]\nservers = ["nats://h"]\nuser = "u"\npassword_file = "f"', BASE, "nats.servers", "tls://"),
    (
        '[etcd]\nendpoints = ["http://h"]\ninsecure = true\nuser = "u"\npassword_file = "f"',
        BASE,
        "etcd.endpoints",
        "https://",
    ),
    ("[fleet]\nstale_after_ms = 999", BASE, "fleet.stale_after_ms", "Set it to several times"),
    ("[models.threshold]\nadjustment_interval_ms = 500", BASE, "models[0].threshold.adjustment_interval_ms", "Set it"),
    (
        "[models.threshold]\ndecode_kv_scale_up_threshold = 1.5",
        BASE,
        "models[0].threshold.decode_kv_scale_up_threshold",
        "25 requests",
    ),
    (
        "[models.threshold]\ndecode_kv_scale_up_threshold = 1.0\nwaiting_request_kv_ratio = 0.0",
        BASE,
        "models[0].threshold.decode_kv_scale_up_threshold",
        "never fires",
    ),
    (
        "[models.threshold]\ndecode_kv_scale_down_threshold = 0.0",
        BASE,
        "models[0].threshold.decode_kv_scale_down_threshold",
        "never shrinks",
    ),
    (
        "[models.threshold]\nprefill_queue_scale_down_threshold = 0.0",
        BASE,
        "models[0].threshold.prefill_queue_scale_down_threshold",
        "never shrinks",
    ),
    ("", model('planner = "static"', AGGREGATED), "models[0].static.replicas", "nothing changes"),
    ("[models.guard]\nstabilisation_ms = 7200000", BASE, "models[0].guard.stabilisation_ms", "2 hours"),
    ("", model("", AGGREGATED + FIXED), "models[0].pools", "no_operation = true"),
    ("", model("", DECODE), "models[0].pools", 'role = "aggregated"'),
    ("", model("gpu_budget_max = 1", AGGREGATED), "models[0].gpu_budget_max", "nothing can grow"),
    ("", model("gpu_budget_min = 8", AGGREGATED), "models[0].gpu_budget_min", "nothing can shrink"),
    ("", model("", AGGREGATED + "\nreplicas_min = 0"), "models[0].pools[0].replicas_min", "replicas_min = 1"),
]


@pytest.mark.parametrize(("text", "base", "place", "words"), WARNINGS)
def test_what_is_surely_unwanted_is_one_warning(text: str, base: str, place: str, words: str) -> None:
    (warning,) = judge(text, base=base)
    assert warning.startswith(f"{place}: ")
    assert words in warning
    assert warning.endswith(".")


def test_thresholds_are_not_judged_where_another_planner_decides() -> None:
    text = model('planner = "load"', AGGREGATED) + "[models.threshold]\ndecode_kv_scale_up_threshold = 0.1"
    assert judge(text, base="") == []


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
    error = refusal("", environ={variable: value})
    assert error.place == f"environment variable {variable}"
    assert remedy in error.remedy


def test_wrong_values_of_variables_are_refused_like_those_of_the_file() -> None:
    assert refusal("", environ={"LOADLINE__HTTP__PORT": "many"}).place == "http.port"
    assert refusal("agent = 1\n" + BASE, base="", environ={"LOADLINE__AGENT__NAME": "x"}).place == "agent"


def test_load_reads_a_file_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "loadline.toml"
    path.write_text(BASE)
    monkeypatch.setenv("LOADLINE__HTTP__PORT", "1234")
    assert load(path).http.port == 1234
    assert load(path, {}).http.port == 9464


@pytest.mark.parametrize(
    ("data", "words"), [(b"a\n\xff", "line 2: is not UTF-8"), (b"#" * 1_048_577, "larger"), (None, "cannot be read")]
)
def test_files_that_cannot_be_read_say_why(tmp_path: Path, data: bytes | None, words: str) -> None:
    path = tmp_path / "loadline.toml"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


def test_describe_says_what_will_be_done() -> None:
    text = (
        model("gpu_budget_max = 9\nno_operation = true", AGGREGATED + FIXED)
        + '[journal]\ndirectory = "/j"\n[http]\nport = 0'
    )
    told = describe(parse(BASE + text, "x"))
    for words in (
        "nats://127.0.0.1:4222",
        "/loadline/default/",
        "Model llama: the threshold planner decides.",
        "Pool prefill (prefill): 1 to 8 workers of 1 GPU.",
        "Mean prefill queue above 0.5",
        "Mean KV load above 0.9",
        "Model m: the threshold planner advises, and decides nothing.",
        "always 3 workers",
        "at most 9 GPUs",
        "Either signal adds",
        "no port is opened",
        "Journal: /j, 1024 MiB at most.",
        "30 s",
    ):
        assert words in told


BASELINES = [
    (
        'planner = "static"\nstatic.replicas.p = 3',
        ("Fixed at 3, whatever the load.", "No fixed count: what stands stays."),
    ),
    (
        'planner = "hpa"',
        ("Every 15 s", "give or take 10%", ": requests in flight to 0.7.", ": KV usage to 0.7.", "count of 5 min"),
    ),
    (
        'planner = "kpa"',
        ("Every 2 s", "each 0.7 requests", "each 70 requests", "mean of 1 min", "6 s ask for 2 times"),
    ),
]


@pytest.mark.parametrize(("body", "words"), BASELINES)
def test_describe_says_what_a_baseline_will_do(body: str, words: tuple[str, ...]) -> None:
    told = describe(parse(model(body, 'name = "p"\nrole = "prefill"', DECODE), "x"))
    assert all(word in told for word in words), told


def test_a_config_survives_the_way_to_json_and_back() -> None:
    config = parse(BASE, "x")
    assert msgspec.json.decode(msgspec.json.encode(config), type=Config) == config


LINEAR = "linear = { alpha = 10, beta = 0.1, gamma = 5, delta = 0.02, max_kv_tokens = 1e6 }"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (LINEAR, []),
        ("", ["models[0].pools[0].prefill_profile: nothing is known of the engines"]),
        ('prefill_profile = "p.npz"', ["decode_profile is missing"]),
        ('prefill_profile = "no.npz"\ndecode_profile = "no.npz"', ["no.npz"]),
        (f'prefill_profile = "p.npz"\n{LINEAR}', ["prefill_profile and linear are both set"]),
        (LINEAR.replace("gamma = 5, delta = 0.02", "gamma = 0, delta = 0"), ["work takes no time"]),
    ],
)
def test_a_profile_that_cannot_be_used_is_a_warning(keys: str, words: list[str]) -> None:
    pool = f'[[models.pools]]\nname = "a"\nrole = "aggregated"\n{keys}\n'
    warnings = judge(f'[[models]]\nname = "m"\nplanner = "sla"\n{pool}', base="")
    assert len(warnings) == len(words)
    assert all(word in warning for word, warning in zip(words, warnings, strict=True))


def test_paths_of_profiles_count_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "loadline.toml"
    file.write_text(
        '[[models]]\nname = "m"\n[[models.pools]]\nname = "p"\nrole = "prefill"\nprefill_profile = "x/p.npz"\n'
    )
    assert load(file, {}).models[0].pools[0].prefill_profile == str(tmp_path / "x" / "p.npz")
