"""Validation of configurations: contradictions are errors, implausible settings are warnings."""

import pytest

from tests.support.config_texts import (
    AGGREGATED,
    BASE,
    BY_THRESHOLD,
    DECODE,
    FIXED,
    config_error,
    config_warnings,
    model,
)

CONTRADICTIONS = [
    ("", model("", DECODE) * 2, "models", "'m' is defined 2 times", "unique name"),
    ("", model("", DECODE, DECODE), "models[0].pools", "'d' is defined 2 times", "unique name"),
    (
        "",
        model("", DECODE + "\nreplicas_min = 9"),
        "models[0].pools[0].replicas_min",
        "above replicas_max 8",
        "replicas_max",
    ),
    ("", model("", AGGREGATED, DECODE), "models[0].pools", "mixes aggregated with decode", "aggregated"),
    ("", model("", 'name = "p"\nrole = "prefill"'), "models[0].pools", "no decode", 'role = "decode"'),
    (
        "",
        model('planner = "treshold"', DECODE),
        "models[0].planner",
        "not an installed planner",
        "Did you mean threshold?",
    ),
    (
        "",
        model('planner = "q"', DECODE),
        "models[0].planner",
        "not an installed planner",
        "Known are: apa, auto, hpa, hybrid, keda, kpa, load, queueing, saturation, sla, static, threshold, throughput",
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
    (
        "",
        model('planner = "hybrid"\nhybrid.saturation.profile = "upstream"', DECODE),
        "models[0].hybrid.saturation.profile",
        "if a scale-down is safe",
        "Remove the key",
    ),
    (
        "",
        model('planner = "hybrid"\nhybrid.saturation.scale_up_threshold = 0.5', DECODE),
        "models[0].hybrid.saturation.scale_up_threshold",
        "is not above",
        "gap",
    ),
    (
        "",
        model("scale_to_zero_after_ms = 1_000", AGGREGATED),
        "models[0].pools[0].replicas_min",
        "prevents scale to zero",
        "Set 0",
    ),
    (
        "",
        model("scale_to_zero_after_ms = 1_000\ngpu_budget_min = 1", AGGREGATED + "\nreplicas_min = 0"),
        "models[0].gpu_budget_min",
        "prevents scale to zero",
        "Remove it",
    ),
    ("", model("gpu_budget_min = 9", DECODE), "models[0].gpu_budget_min", "more than the 8", "replicas_max"),
    (
        "[fleet]\ngpu_budget_min = 5\ngpu_budget_max = 4",
        BASE,
        "fleet.gpu_budget_min",
        "above gpu_budget_max 4",
        "Lower",
    ),
    ("[fleet]\ngpu_budget_max = 1", BASE, "fleet.gpu_budget_max", "fewer than the 2", "replicas_min"),
    (
        "",
        model('planner = "saturation"\nsaturation.scale_up_threshold = 0.75', DECODE),
        "models[0].saturation.scale_up_threshold",
        "0.75 is not above scale_down_boundary 0.75",
        "gap",
    ),
    (
        "",
        model('planner = "saturation"\nsaturation.kv_spare_trigger = 0.9', DECODE),
        "models[0].saturation.kv_spare_trigger",
        "0.9 is above kv_cache_threshold 0.8",
        "Lower it",
    ),
    (
        "[fleet]\ntraffic_window_ms = 9_000",
        model('planner = "throughput"\nthroughput.busiest_ms = 5_000', AGGREGATED),
        "fleet.traffic_window_ms",
        "9000 ms is below models[0].throughput.surge_window_ms 10000",
        "Raise it, or lower surge_window_ms",
    ),
    (
        "[fleet]\ntraffic_window_ms = 29_000",
        model('planner = "sla"', AGGREGATED),
        "fleet.traffic_window_ms",
        "29000 ms is below models[0].sla.throughput.busiest_ms 30000",
        "Raise it, or lower busiest_ms",
    ),
    ("[fleet]\ngpu_budget_min = 99", BASE, "fleet.gpu_budget_min", "more than the 16", "replicas_max"),
    (
        "[fleet]\ngpu_budget_max = 4",
        model("gpu_budget_min = 5", DECODE),
        "fleet.gpu_budget_max",
        "fewer than the 5 of the smallest fleet (replicas_min x gpus_per_worker, within the budgets",
        "replicas_min",
    ),
    (
        "[models.threshold]\nprefill_queue_scale_up_threshold = 0.2",
        BY_THRESHOLD,
        "models[0].threshold.prefill_queue_scale_up_threshold",
        "0.2 is not above",
        "gap",
    ),
    (
        "[models.threshold]\ndecode_kv_scale_down_threshold = 0.95",
        BY_THRESHOLD,
        "models[0].threshold.decode_kv_scale_up_threshold",
        "0.9 is not above",
        "gap",
    ),
    (
        "",
        model('planner = "static"\nstatic.replicas = {e = 1}', DECODE),
        "models[0].static.replicas.e",
        "not a pool of this model",
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
    ("[leadership]\nmargin_ms = 10000", BASE, "leadership.margin_ms", "no agent could lead", "lease_ttl_s"),
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
    ('[nats]\ncert_file = "f"', BASE, "nats.key_file", "missing", "together"),
    ('[nats]\ncert_file = "f"\nkey_file = "f"', BASE, "nats.cert_file", "no tls:// URL", "tls://"),
    ('[etcd]\ncert_file = "f"', BASE, "etcd.key_file", "missing", "together"),
    ('[etcd]\nkey_file = "f"', BASE, "etcd.cert_file", "missing", "together"),
    (
        '[nats]\nuser = "u"\npassword_file = "f"\ncredentials_file = "c"',
        BASE,
        "nats.credentials_file",
        "both set",
        "Remove one",
    ),
    ('[agent]\nroot = "a..b"', BASE, "agent.root", "empty token", "single dots"),
    ('[nats]\ninbox_prefix = "loadline"', BASE, "nats.inbox_prefix", "first token of agent.root", "_INBOX_agent"),
    (
        '[agent]\nroot = "prod.eu"\n[nats]\ninbox_prefix = "prod"',
        BASE,
        "nats.inbox_prefix",
        "first token of agent.root",
        "_INBOX_agent",
    ),
]


@pytest.mark.parametrize(("text", "base", "place", "problem", "remedy"), CONTRADICTIONS)
def test_contradictions_name_key_and_remedy(text: str, base: str, place: str, problem: str, remedy: str) -> None:
    error = config_error(text, base=base)
    assert error.place == place
    assert problem in error.problem
    assert remedy in error.remedy


@pytest.mark.parametrize(
    "text", ['[nats]\nservers = ["nats://u:hunter2@h:1"]', '[etcd]\nendpoints = ["https://hunter2@h:1"]']
)
def test_a_password_in_a_url_is_refused_and_not_repeated(text: str) -> None:
    error = config_error(text)
    assert "contains a login" in error.problem
    assert "password_file" in error.remedy
    assert "hunter2" not in str(error)


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
    ("[fleet]\nstale_after_ms = 999", BY_THRESHOLD, "fleet.stale_after_ms", "Set it to several times"),
    (
        "[models.threshold]\nadjustment_interval_ms = 500",
        BY_THRESHOLD,
        "models[0].threshold.adjustment_interval_ms",
        "Set it",
    ),
    (
        "[models.threshold]\ndecode_kv_scale_up_threshold = 1.5",
        BY_THRESHOLD,
        "models[0].threshold.decode_kv_scale_up_threshold",
        "25 waiting requests",
    ),
    (
        "[models.threshold]\ndecode_kv_scale_up_threshold = 1.0\nwaiting_request_kv_ratio = 0.0",
        BY_THRESHOLD,
        "models[0].threshold.decode_kv_scale_up_threshold",
        "is never",
    ),
    (
        "[models.threshold]\ndecode_kv_scale_down_threshold = 0.0",
        BY_THRESHOLD,
        "models[0].threshold.decode_kv_scale_down_threshold",
        "never scaled down",
    ),
    (
        "[models.threshold]\nprefill_queue_scale_down_threshold = 0.0",
        BY_THRESHOLD,
        "models[0].threshold.prefill_queue_scale_down_threshold",
        "never scaled down",
    ),
    ("", model('planner = "static"', AGGREGATED), "models[0].static.replicas", "no count changes"),
    ("[models.guardrails]\nstabilisation_ms = 7200000", BASE, "models[0].guardrails.stabilisation_ms", "2 hours"),
    ("", model("", AGGREGATED + FIXED), "models[0].pools", "no_operation = true"),
    ("", model("", DECODE), "models[0].pools", 'role = "aggregated"'),
    ("", model("gpu_budget_max = 1", AGGREGATED), "models[0].gpu_budget_max", "no pool can be scaled up"),
    ("", model("gpu_budget_min = 8", AGGREGATED), "models[0].gpu_budget_min", "no pool can be scaled down"),
    ("[fleet]\ngpu_budget_max = 1", model("", AGGREGATED), "fleet.gpu_budget_max", "no pool can be scaled up"),
    ("[fleet]\ngpu_budget_min = 8", model("", AGGREGATED), "fleet.gpu_budget_min", "no pool can be scaled down"),
    ("", model("", AGGREGATED + "\nreplicas_min = 0"), "models[0].pools[0].replicas_min", "scale_to_zero_after_ms"),
]


@pytest.mark.parametrize(("text", "base", "place", "words"), WARNINGS)
def test_an_implausible_setting_gives_one_warning(text: str, base: str, place: str, words: str) -> None:
    (warning,) = config_warnings(text, base=base)
    assert warning.startswith(f"{place}: ")
    assert words in warning
    assert warning.endswith(".")


def test_thresholds_of_another_planner_are_not_checked() -> None:
    text = model('planner = "load"', AGGREGATED) + "[models.threshold]\ndecode_kv_scale_up_threshold = 0.1"
    (warning,) = config_warnings(text, base="")
    assert "the load planner ignores it" in warning


@pytest.mark.parametrize(("planner", "warned"), [("load", True), ("throughput", False), ("saturation", False)])
def test_an_empty_pool_that_never_scales_up_is_warned_of(planner: str, *, warned: bool) -> None:
    beside = f'name = "beside"\nrole = "aggregated"\n{LINEAR}'
    text = model(f'planner = "{planner}"', f"{AGGREGATED}\nreplicas_min = 0\n{LINEAR}", beside)
    assert any("empty pool" in warning for warning in config_warnings(text, base="")) is warned


def test_an_idle_time_that_looks_like_seconds_is_warned_of() -> None:
    (warning,) = config_warnings("", base=model("scale_to_zero_after_ms = 30", AGGREGATED + "\nreplicas_min = 0"))
    assert warning.startswith("models[0].scale_to_zero_after_ms: 30 ms scales the model to zero between two requests")
    assert warning.endswith("30 s are 30000.")


def test_a_model_that_scales_to_zero_gives_no_warning() -> None:
    assert config_warnings("", base=model("scale_to_zero_after_ms = 600_000", AGGREGATED + "\nreplicas_min = 0")) == []


def test_traffic_windows_of_another_planner_are_not_checked() -> None:
    assert config_warnings("[fleet]\ntraffic_window_ms = 1_000", base=model('planner = "load"', AGGREGATED)) == []


LINEAR = "linear = { alpha = 10, beta = 0.1, gamma = 5, delta = 0.02, max_kv_tokens = 1e6 }"
NO_FILE = "no.npz: cannot be read: No such file or directory. Give the path of a profile written by the profiler."
NO_TIME = (
    "models[0].pools[0].linear: work takes no time: write alpha or beta above 0, and gamma or delta. "
    "Until then the pool is held."
)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (LINEAR, []),
        ("", ["models[0].pools[0].prefill_profile: the pool has no engine profile"]),
        ('prefill_profile = "no.npz"', [f"models[0].pools[0].prefill_profile: {NO_FILE} decode_profile: is missing."]),
        ('decode_profile = "no.npz"', [f"models[0].pools[0].decode_profile: {NO_FILE} prefill_profile: is missing."]),
        (
            'prefill_profile = "no.npz"\ndecode_profile = "no.npz"',
            [f"models[0].pools[0].prefill_profile: {NO_FILE} decode_profile: {NO_FILE} Until then the pool is held."],
        ),
        (f'prefill_profile = "p.npz"\n{LINEAR}', ["models[0].pools[0].prefill_profile: linear is set too."]),
        (LINEAR.replace("gamma = 5, delta = 0.02", "gamma = 0, delta = 0"), [NO_TIME]),
    ],
)
def test_an_unusable_profile_gives_a_warning(keys: str, words: list[str]) -> None:
    pool = f'[[models.pools]]\nname = "a"\nrole = "aggregated"\n{keys}\n'
    warnings = config_warnings(f'[[models]]\nname = "m"\nplanner = "sla"\n{pool}', base="")
    assert len(warnings) == len(words)
    assert all(word in warning for word, warning in zip(words, warnings, strict=True))


def test_token_capacity_with_the_upstream_profile_is_warned_of() -> None:
    knobs = 'planner = "saturation"\nsaturation = { profile = "%s", capacity = "tokens" }'
    (warning,) = config_warnings("", base=model(knobs % "upstream", AGGREGATED))
    assert warning.startswith('models[0].saturation.capacity: "tokens" has no effect')
    assert config_warnings("", base=model(knobs % "own", AGGREGATED)) == []


def test_a_number_beyond_all_bounds_is_an_error() -> None:
    error = config_error("", base=model("", DECODE + "\nreplicas_max = 1" + 400 * "0"))
    assert error.place == "models[0].pools[0].replicas_max"
