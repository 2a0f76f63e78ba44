"""Errors of configurations name file and line, and all of them are reported together."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadline.config import load, parse, validate
from loadline.errors import ConfigError
from loadline.toml.lines import FileLines, key_lines

ROOT = Path(__file__).parents[3]
TEXT = '''# a comment with [brackets] and key = value
title = """
several = lines
[no.header]
"""
[nats] # the servers
servers = [
  "nats://a:4222", # one
  "nats://b:4222",
]

[[models]]
name = 'm'
objectives.ttft_ms = 500
"quoted key" = 1
[[models.pools]]
name = "p"
schedules = [{ start = "x", end = "]" },
  { start = "y" }]
[models.guardrails]
step_up_max = 3
[[models]]
name = "n"
pools = [ { name = "q" } ]
'''
LINES = {
    "title": 2,
    "nats": 6,
    "nats.servers": 7,
    "nats.servers[0]": 8,
    "nats.servers[1]": 9,
    "models": 12,
    "models[0]": 12,
    "models[0].name": 13,
    "models[0].objectives": 14,
    "models[0].objectives.ttft_ms": 14,
    "models[0].quoted key": 15,
    "models[0].pools": 16,
    "models[0].pools[0]": 16,
    "models[0].pools[0].name": 17,
    "models[0].pools[0].schedules": 18,
    "models[0].pools[0].schedules[0]": 18,
    "models[0].pools[0].schedules[0].start": 18,
    "models[0].pools[0].schedules[0].end": 18,
    "models[0].pools[0].schedules[1]": 19,
    "models[0].pools[0].schedules[1].start": 19,
    "models[0].guardrails": 20,
    "models[0].guardrails.step_up_max": 21,
    "models[1]": 22,
    "models[1].name": 23,
    "models[1].pools": 24,
    "models[1].pools[0]": 24,
    "models[1].pools[0].name": 24,
}


def places(value: Any, place: str) -> Iterator[str]:
    if place:
        yield place
    if isinstance(value, dict):
        for key, one in value.items():
            yield from places(one, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from places(one, f"{place}[{index}]")


def test_every_key_has_its_line() -> None:
    assert key_lines(TEXT) == LINES


@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/examples/*.toml")) + sorted(ROOT.glob("deploy/**/*.toml")))
def test_files_of_the_project_have_a_line_for_every_key(path: Path) -> None:
    text = path.read_text("utf-8")
    assert key_lines(text).keys() == set(places(tomllib.loads(text), ""))


KEYS = st.sampled_from(["a", "b", "long-key", "'a b'", '"c.d"', '"#"'])
SCALARS = st.sampled_from(['"x"', "1", "true", '"[{#=,"', "'''a\nb'''", '"""\n[t]\nk = 1\n"""', "1979-05-27T07:32:00Z"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: "[\n  " + ", # ]\n".join([*items, ""]) + "]")
        | st.dictionaries(KEYS, inner, max_size=3).map(
            lambda pairs: "{ " + ", ".join(f"{key} = {one}" for key, one in pairs.items()) + " }"
        )
    ),
    max_leaves=6,
)
TABLES = st.lists(st.tuples(st.sampled_from(["[[t]]", "[[t.u]]", "[v]"]), st.dictionaries(KEYS, VALUES, max_size=3)))


@given(TABLES)
def test_any_valid_text_has_a_line_for_every_key(tables: list[tuple[str, dict[str, str]]]) -> None:
    lines = [line for header, pairs in tables for line in (header, *(f"{key} = {one}" for key, one in pairs.items()))]
    text = "\n".join(lines)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    found = key_lines(text)
    assert found.keys() == set(places(table, ""))
    assert all(1 <= line <= text.count("\n") + 1 for line in found.values())


def test_a_place_without_a_line_has_that_of_what_contains_it() -> None:
    lines = FileLines("f.toml", LINES, {"http.port": "environment variable LOADLINE__HTTP__PORT"})
    assert lines.where("models[1].pools[0].role") == "f.toml, line 24"
    assert lines.where("models[0].guardrails.cooldown_up_ms") == "f.toml, line 20"
    assert lines.where("etcd.endpoints") == "f.toml"
    assert lines.where("http.port") == "environment variable LOADLINE__HTTP__PORT"


BROKEN = """
[http]
port = 99999
[nats]
server = ["nats://127.0.0.1:4222"]
[[models]]
name = "m"
objectives = { ttft_ms = "500ms" }
[[models.pools]]
name = "p"
"""


def test_all_errors_of_a_file_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(BROKEN, "f.toml")
    assert [(one.where, one.place) for one in caught.value.errors] == [
        ("f.toml, line 3", "http.port"),
        ("f.toml, line 5", "nats.server"),
        ("f.toml, line 8", "models[0].objectives.ttft_ms"),
        ("f.toml, line 9", "models[0].pools[0].role"),
    ]
    assert str(caught.value).count("\n") == 3


CONTRADICTING = """
leadership.margin_ms = 10_000
[[models]]
name = "m"
planner = "automatic"
service_class = "gold"
pools = [
  { name = "p", role = "prefill", replicas_min = 9, replicas_max = 8, accelerator = "h100" },
]
[[models]]
name = "m"
pools = [ { name = "p", role = "aggregated" }, { name = "p", role = "aggregated" } ]
"""


def test_all_contradictions_of_a_file_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        validate(parse(CONTRADICTING, "f.toml"))
    assert sorted(f"{one.where}: {one.place}" for one in caught.value.errors) == [
        "f.toml, line 12: models[1].pools",
        "f.toml, line 2: leadership.margin_ms",
        "f.toml, line 3: models",
        "f.toml, line 5: models[0].planner",
        "f.toml, line 6: models[0].service_class",
        "f.toml, line 7: models[0].pools",
        "f.toml, line 8: models[0].pools[0].accelerator",
        "f.toml, line 8: models[0].pools[0].replicas_min",
    ]


def test_a_wrong_value_of_a_layer_is_an_error_of_the_layer_alone(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text('[[models]]\nname = "m"\npools = [{ name = "p", role = "aggregated" }]\n[defaults]\npriority = 0\n')
    with pytest.raises(ConfigError, match=r"f\.toml, line 5: defaults\.priority: is 0") as caught:
        load(path, {})
    assert len(caught.value.errors) == 1


def test_a_value_of_the_environment_is_not_blamed_on_the_file() -> None:
    text = '[http]\nport = 1\n[[models]]\nname = "m"\npools = [{ name = "p", role = "aggregated" }]'
    with pytest.raises(ConfigError) as caught:
        parse(text, "f.toml", {"LOADLINE__HTTP__PORT": "99999"})
    assert str(caught.value).startswith("environment variable LOADLINE__HTTP__PORT: http.port: is 99999.")
