"""SECURITY.md names existing tests for each of its promises."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "SECURITY.md").read_text("utf-8")
TABLES = re.split(r"^## ", TEXT, flags=re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def section(title: str) -> str:
    [found] = [one for one in TABLES if one.startswith(f"{title}\n")]
    return found


def rows(text: str) -> dict[str, str]:
    """Return the second column of a table by its first, without links."""
    found = re.findall(r"^\| (.+?) \| (.+) \|$", text, re.MULTILINE)
    return {LINK.sub(r"\1", first): second for first, second in found}


THREATS = list(rows(section("Threats")))[1:]
PROMISES = [*THREATS, *(name for name in re.findall(r"^- \*\*([^*]+)\.\*\*", section("Compatibility"), re.MULTILINE))]
TESTS = rows(section("Tests of these promises"))


@cache
def functions(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / "tests" / path).read_text("utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_each_promise_has_its_row() -> None:
    assert len(THREATS) > 25
    assert list(TESTS)[1:] == PROMISES


@pytest.mark.parametrize("promise", PROMISES)
def test_the_tests_of_a_promise_exist(promise: str) -> None:
    named = re.findall(r"`([^`]+)`", TESTS[promise])
    assert named
    for one in named:
        path, _, name = one.partition("::")
        assert name.startswith("test_"), one
        assert name in functions(path), one
