"""Checks of the configuration of migration, and its description."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from loadline.config import Config, describe, load, parse, validate
from loadline.config.tpot_profiles import read_tpot
from loadline.errors import ConfigError, DataError
from loadline.runtime.settings import settings

POOLS = 'pools = [{ name = "d", role = "decode", replicas_max = 4 }, { name = "p", role = "prefill" }]'
GOOD = "enabled = true\ndecode_load_threshold = 0.9\n"


def config(knobs: str, agent: str = "", pools: str = POOLS) -> Config:
    text = f'[agent]\n{agent}\n[[models]]\nname = "m"\n{pools}\n[models.migration]\n{knobs}\n'
    return parse(text, "loadline.toml")


def test_a_plausible_configuration_has_no_warning() -> None:
    assert validate(config(GOOD)) == []


@pytest.mark.parametrize(
    ("knobs", "place", "remedy"),
    [
        ("tpot_migrate_out_ceil_threshold = 0.5", "tpot_slo_dispatch_threshold", "Lower it or raise"),
        ("tpot_migrate_out_floor_threshold = 0.9", "tpot_migrate_out_floor_threshold", "Lower it or raise"),
        ("breaker_ms = 70000", "breaker_ms", "Lower it or raise breaker_max_ms"),
        (
            'req_select_rule = "NUM_REQ"\nreq_select_value = 0',
            "req_select_value",
            "1 or more",
        ),
        (
            'req_select_rule = "RATIO"\nreq_select_value = 1024',
            "req_select_value",
            "a fraction up to 1",
        ),
        (f"{GOOD}enable_adaptive_pd = true", "tpot_profiling_data_path", "decode_profile"),
        (
            f'{GOOD}decode_load_metric = "predicted_tpot"',
            "tpot_profiling_data_path",
            "decode_profile",
        ),
        ('failover_domain = "rack"', "failover_domain", "instance-unit"),
        ('policies = ["decode_loda"]', "policies", "decode_load"),
        ("no_operation = true", "no_operation", "a key of [[models]]"),
        (
            "colocated_rescheduling_mode = true",
            "colocated_rescheduling_mode",
            "an agent that scales also migrates requests",
        ),
        ("standalone_rescheduling_mode = true", "standalone_rescheduling_mode", "--only migration"),
    ],
)
def test_an_invalid_value_is_refused_with_a_remedy(knobs: str, place: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(config(knobs))
    assert caught.value.place.startswith(f"models[0].migration.{place}")
    assert remedy in caught.value.remedy


def test_a_section_in_the_wrong_place_is_refused_with_the_right_one() -> None:
    with pytest.raises(ConfigError, match=r"Write it in a model: \[models\.migration\]"):
        parse(f"[migration]\n{GOOD}", "loadline.toml")
    with pytest.raises(ConfigError, match='Write one of "", migration'):
        config(GOOD, 'only = "scaling"')


@pytest.mark.parametrize(
    ("knobs", "described"),
    [
        ("hops_max = 5", "migration is not enabled"),
        (f"{GOOD}suspect_after_ms = 1500", "less than two reports"),
        (f"{GOOD}instance_staleness_seconds = 4", "not above suspect_after_ms"),
        (f'{GOOD}policies = ["decode_failover"]', "decode_load is not listed"),
        ("enabled = true", "Set decode_load_threshold = 0.9"),
        ("enabled = true\ndecode_load_threshold = 80", "80 full caches"),
        (f"{GOOD}load_balance_threshold = 20", "two workers rarely reach"),
        (f"{GOOD}hops_max = 0", "migrate nothing"),
    ],
)
def test_an_implausible_value_gives_a_warning(knobs: str, described: str) -> None:
    (warning,) = validate(config(knobs))
    assert described in warning


def test_thresholds_of_metrics_other_than_shares_give_no_warning() -> None:
    knobs = 'enabled = true\ndecode_load_metric = "num_requests"\n'
    assert validate(config(knobs)) == []
    assert validate(config(f"{knobs}decode_load_threshold = 80")) == []


def test_linear_parameters_are_enough_for_times_per_token() -> None:
    linear = "{ alpha = 8, beta = 0.1, gamma = 10, delta = 0.1, max_kv_tokens = 100000 }"
    pools = POOLS.replace("replicas_max = 4", f"replicas_max = 4, linear = {linear}")
    assert validate(config(f"{GOOD}enable_adaptive_pd = true", pools=pools)) == []


def test_an_agent_that_only_migrates_has_its_own_leader_scope() -> None:
    only_config = config(GOOD, 'only = "migration"')
    assert validate(only_config) == []
    core_settings = settings(only_config)
    assert (core_settings.scope, core_settings.only_migration) == ("migration", True)
    assert settings(config(GOOD)).scope == "all"
    (warning,) = validate(config("", 'only = "migration"'))
    assert "no model has migration enabled" in warning


def test_the_description_says_which_requests_migrate() -> None:
    described = describe(config(GOOD))
    assert "Requests migrate between workers: those of draining workers, and those selected by decode_load" in described
    assert (
        "silent for 4 s fails, together with all data-parallel ranks of its unit: failover_domain is instance-unit"
        in described
    )
    assert "the auto planner decides" in described
    assert "Requests migrate" not in describe(config("enabled = false"))
    nothing = describe(config(f"{GOOD}policies = []\nmigrate_drains = false"))
    assert "No request migrates: migration.policies is empty and migration.migrate_drains is false." in nothing
    advised = describe(config(GOOD, pools=f"no_operation = true\n{POOLS}"))
    assert "Requests would migrate (no_operation is set) between workers" in advised


def test_the_description_of_an_agent_that_only_migrates_omits_scaling() -> None:
    knobs = f"{GOOD}[decisions]\nttl_ms = 1000\n[fleet]\ngpu_budget_max = 4"
    decode = 'pools = [{ name = "d", role = "decode", replicas_max = 4 }]'
    only = 'only = "migration"'
    described = describe(config(knobs, only, decode))
    assert "Model m: another autoscaler sets its worker counts." in described
    assert not [word for word in ("shrink", "decision", "GPUs", "planner", "Pool") if word in described]
    assert validate(config(knobs, only, decode)) == []
    assert len(validate(config(knobs, "", decode))) == 2
    two = config(GOOD, only)
    other = parse(f'[[models]]\nname = "n"\n{POOLS}\n', "n").models
    nothing = describe(config(f"{GOOD}policies = []\nmigrate_drains = false", only))
    assert "No request migrates: migration.policies is empty and migration.migrate_drains is false." in nothing
    assert "Model n: not managed, since migration.enabled is not set." in describe(
        replace(two, models=(*two.models, *other))
    )


def test_the_path_of_a_time_profile_is_relative_to_the_configuration(tmp_path: Path) -> None:
    points = (
        '{"batch_size": 4, "tokens_per_request": 100, "p50": 9.5, "raw_data": [1]},'
        '{"batch_size": 8, "tokens_num": 800, "p50": 11}'
    )
    (tmp_path / "tpot.json").write_text(f'{{"results": [{points}]}}')
    path = tmp_path / "loadline.toml"
    path.write_text(
        f'[[models]]\nname = "m"\n{POOLS}\n[models.migration]\n{GOOD}tpot_profiling_data_path = "tpot.json"\n'
    )
    sweep = settings(load(path)).tpot_profiles["m"]
    assert (sweep.batch_requests, sweep.tokens_per_request, sweep.tpot_ms) == ((4.0, 8.0), (100.0, 100.0), (9.5, 11.0))


def test_a_missing_time_profile_is_refused_with_its_key(tmp_path: Path) -> None:
    missing = tmp_path / "none.json"
    with pytest.raises(DataError) as caught:
        settings(config(f'{GOOD}tpot_profiling_data_path = "{missing}"'))
    assert str(caught.value).startswith(f"models[0].migration.tpot_profiling_data_path: {missing}: cannot be read")


@pytest.mark.parametrize(
    ("content", "described"),
    [
        ("[]", "Expected `object`"),
        ('{"results": []}', "length >= 1"),
        ('{"results": [{"batch_size": 1, "p50": 3}]}', "point 1 needs either"),
        ('{"results": [{"batch_size": 1, "p50": -3, "tokens_num": 5}]}', "> 0"),
        ("{", "truncated"),
    ],
)
def test_a_profile_that_cannot_be_used_is_named(tmp_path: Path, content: str, described: str) -> None:
    path = tmp_path / "tpot.json"
    path.write_text(content)
    with pytest.raises(DataError, match=described) as caught:
        read_tpot(path)
    assert str(path) in str(caught.value)
