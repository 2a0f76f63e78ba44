"""Conventions of the package that no linter checks."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from tests.file_order import LONGEST_FIRST, TESTS

ROOT: Final = Path(__file__).parents[3]
PACKAGE: Final = ROOT / "agent" / "loadline"
LINES_MAX: Final = 400
FUNCTION_LINES_MAX: Final = 60
QUESTION_WORDS: Final = frozenset(
    {
        "As", "How", "It", "Nobody", "Nothing", "Of", "So", "That", "There", "Those", "What", "Whatever", "When",
        "Where", "Whether", "Which", "Who", "Whoever", "Whose", "Why",
    }
)  # fmt: skip
"""First words of docstrings that describe no action and no thing."""
NAMES_OF_OTHERS: Final = re.compile(r"\b(kv_spare_trigger|queue_spare_trigger|wva_spare_capacity|gpu_wish_ttl_ms)\b")
"""Keys and metrics of llm-d's WVA, and the former name of a key that is refused with a remedy."""
SOURCES: Final = sorted(PACKAGE.rglob("*.py"))
ALL_SOURCES: Final = [*SOURCES, *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "tools").rglob("*.py"))]
ANY_FUNCTION: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED: Final = (ast.Module, ast.ClassDef, *ANY_FUNCTION)


def parsed(paths: Iterable[Path] = SOURCES) -> Iterator[tuple[str, ast.Module]]:
    for path in paths:
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text("utf-8"))


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Return those of modules, classes and functions, and the strings that describe attributes and parameters."""
    for node in ast.walk(tree):
        if not isinstance(node, DOCUMENTED):
            continue
        if text := ast.get_docstring(node):
            yield getattr(node, "lineno", 1), text
            for parameter in parameters(text):
                yield getattr(node, "lineno", 1), parameter
        for before, after in pairwise(node.body):
            if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
                value = after.value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield after.lineno, value.value


def parameters(text: str) -> list[str]:
    """Descriptions of parameters in a docstring, each up to the end of its first line."""
    _, found, section = text.partition("\nArgs:\n")
    section = re.split(r"^\S", section, maxsplit=1, flags=re.MULTILINE)[0] if found else ""
    return re.findall(r"^    \*{0,2}\w+: (.+)$", section, flags=re.MULTILINE)


def banned_words() -> list[str]:
    """Words in backticks in the column "Not" of the glossary."""
    words: set[str] = set()
    for line in (ROOT / "docs" / "reference" / "glossary.md").read_text("utf-8").splitlines():
        cells = line.strip("|").split("|")
        if line.startswith("|") and len(cells) == 3:
            words.update(re.findall(r"`([^`]+)`", cells[2]))
    return sorted(words)


def test_no_class_name_occurs_twice() -> None:
    places = defaultdict(list)
    for name, tree in parsed():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{name}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_files_are_short() -> None:
    lengths = {str(path.relative_to(ROOT)): path.read_text("utf-8").count("\n") for path in ALL_SOURCES}
    assert {name: lines for name, lines in lengths.items() if lines > LINES_MAX} == {}


def test_functions_are_short() -> None:
    found = {}
    for name, tree in parsed(ALL_SOURCES):
        for node in ast.walk(tree):
            if isinstance(node, ANY_FUNCTION) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    found[f"{name}:{node.name}"] = lines
    assert found == {}


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = [
        f"{name}:{line}: {text.splitlines()[0]}"
        for name, tree in parsed()
        for line, text in docstrings(tree)
        if text.split(maxsplit=1)[0].rstrip(",:;") in QUESTION_WORDS
    ]
    assert found == []


def test_the_glossary_bans_words() -> None:
    assert {"belief", "rails", "opinion"} <= set(banned_words())


@pytest.mark.parametrize("folder", ["agent", "docs", "README.md"])
def test_no_banned_word_is_used(folder: str) -> None:
    """Find the words in prose, and as a part of an identifier between underscores."""
    banned = re.compile(rf"(?<![A-Za-z])({'|'.join(map(re.escape, banned_words()))})(?![A-Za-z])", re.IGNORECASE)
    place = ROOT / folder
    paths = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.suffix in {".py", ".md"})
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in paths
        if path.name != "glossary.md"
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        for match in banned.finditer(NAMES_OF_OTHERS.sub("", line))
    ]
    assert found == []


def test_the_order_of_test_files_names_existing_ones() -> None:
    assert [name for name in LONGEST_FIRST if not (TESTS / name).exists()] == []
