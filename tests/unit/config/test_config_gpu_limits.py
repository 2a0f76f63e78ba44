"""GPU capacity and quotas in a configuration: known types, and room for minimum replicas."""

import pytest

from loadline.config import parse
from loadline.config.summary import describe
from loadline.runtime.settings import settings
from tests.support.config_texts import config_error, config_warnings, model

ACCELERATORS = """
[[accelerators]]
name = "dgx"
type = "h100"
multiplicity = 8
[[accelerators]]
name = "a100"
"""
POOL = 'name = "p"\nrole = "aggregated"\ngpus_per_worker = 8\nreplicas_min = 2\naccelerator = "dgx"'
SMALL = model('namespace = "team"', POOL) + ACCELERATORS


@pytest.mark.parametrize(
    ("text", "place", "problem", "remedy"),
    [
        ("[allocation.capacity]\nh1000 = 9", "allocation.capacity.h1000", "no accelerator has the type", "mean h100?"),
        ("[allocation.capacity]\ndgx = 9", "allocation.capacity.dgx", "no accelerator has the type", "a100, h100"),
        (
            "[allocation.capacity]\nh100 = 15",
            "allocation.capacity.h100",
            "15 GPUs are fewer than the 16 of the minimum replicas",
            "Set it to 16 or more, or lower replicas_min",
        ),
        (
            '[[namespaces]]\nname = "team"\ngpu_quota = { h200 = 1 }',
            "namespaces[0].gpu_quota.h200",
            "no accelerator has the type",
            "mean h100?",
        ),
        (
            '[[namespaces]]\nname = "team"\ngpu_quota = { h100 = 8 }',
            "namespaces[0].gpu_quota.h100",
            "8 GPUs are fewer than the 16",
            "lower replicas_min",
        ),
        (
            '[[namespaces]]\nname = "team"\ngpu_quota = { default = 0 }',
            "namespaces[0].gpu_quota.default",
            "0 GPUs are fewer than the 16",
            "lower replicas_min",
        ),
        ('[[accelerators]]\nname = "default"', "accelerators[2].type", "is reserved in quotas", "another type"),
        ('[[accelerators]]\nname = "a/b"', "accelerators[2].type", "is reserved in quotas", "another type"),
    ],
)
def test_invalid_limits_are_refused(text: str, place: str, problem: str, remedy: str) -> None:
    found = config_error(text, base=SMALL)
    assert found.place == place
    assert problem in found.problem
    assert remedy in found.remedy


@pytest.mark.parametrize("quota", ["h100 = 16", "h100 = -1", "a100 = 0", "default = 0, h100 = -1"])
def test_quotas_that_cover_minimum_replicas_are_accepted(quota: str) -> None:
    text = f'[allocation.capacity]\nh100 = 16\n[[namespaces]]\nname = "team"\ngpu_quota = {{ {quota} }}'
    assert config_warnings(text, base=SMALL) == []


def test_without_accelerators_the_remedy_is_to_add_one() -> None:
    found = config_error("[allocation.capacity]\nh100 = 9")
    assert found.remedy == "Add an [[accelerators]] table of that type."


def test_a_pool_without_an_applicable_limit_is_warned_of() -> None:
    other = model("", 'name = "p"\nrole = "aggregated"').replace('"m"', '"other"')
    (warning,) = config_warnings("[allocation.capacity]\nh100 = 16", base=SMALL + other)
    assert warning.startswith("models[1].pools[0].accelerator: is not set")


@pytest.mark.parametrize(
    ("quota", "warned"), [("h100 = 32", True), ("h100 = 32, default = 8", True), ("default = 8", False)]
)
def test_a_quota_by_type_does_not_apply_to_a_pool_without_a_type(quota: str, warned: bool) -> None:  # noqa: FBT001 - a case
    other = model('namespace = "team"', 'name = "p"\nrole = "aggregated"').replace('"m"', '"other"')
    base = SMALL.replace("replicas_min = 2", "replicas_min = 1") + other
    found = config_warnings(f'[[namespaces]]\nname = "team"\ngpu_quota = {{ {quota} }}', base=base)
    assert [text.partition(",")[0] for text in found] == ["models[1].pools[0].accelerator: is not set"] * warned
    assert all("namespaces[0].gpu_quota" in text for text in found)


def test_a_pool_without_a_type_below_a_default_quota_is_refused_with_the_remedy() -> None:
    text = '[[namespaces]]\nname = "team"\ngpu_quota = { default = 0 }'
    found = config_error(text, base=model('namespace = "team"', 'name = "p"\nrole = "aggregated"'))
    assert found.place == "namespaces[0].gpu_quota.default"
    assert found.problem.endswith("of models[0].pools[0]")
    assert found.remedy.startswith("Set the accelerator of each pool, since a pool without one has no GPU type.")


@pytest.mark.parametrize("table", ["[allocation.capacity]", '[[namespaces]]\nname = "team"\n[namespaces.gpu_quota]'])
def test_an_invalid_number_in_a_table_is_named_by_its_key(table: str) -> None:
    found = config_error(f'{table}\na100 = 1\nh100 = "many"', base=SMALL)
    assert found.place in {"allocation.capacity.h100", "namespaces[0].gpu_quota.h100"}
    assert found.problem == "is 'many'"
    assert found.remedy.startswith("Write a whole number from ")


def test_quotas_reach_the_core_and_are_described() -> None:
    text = '[allocation.capacity]\nh100 = 64\n[[namespaces]]\nname = "team"\ngpu_quota = { h100 = 32, default = -1 }'
    config = parse(SMALL + text, "loadline.toml", {})
    core_settings = settings(config)
    assert (core_settings.allocation.capacity, core_settings.quotas) == (
        {"h100": 64},
        {"team": {"h100": 32, "default": -1}},
    )
    lines = describe(config).splitlines()
    assert "GPU capacity, shared by all models: 64 of type h100." in lines
    expected = "GPU quota of namespace team: type h100 32, every other type unlimited."
    assert expected in lines
