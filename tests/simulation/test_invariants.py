"""The list of invariants names every invariant that the simulation checks, and existing tests of the others."""

import re
from pathlib import Path

from loadline.sim import chaos
from loadline.sim.chaos.invariants import INVARIANTS, TESTED_ELSEWHERE

ROOT = Path(__file__).parents[2]
NUMBERED = [f"I{number}" for number in range(1, 22)] + [f"L{number}" for number in range(1, 8)]


def test_the_checked_invariants_are_those_of_the_list() -> None:
    sources = [path.read_text() for path in Path(chaos.__path__[0]).glob("*.py") if path.name != "invariants.py"]
    checked = {name for source in sources for name in re.findall(r'"([A-Z]\d*-[a-z-]+)"', source)}
    assert checked == set(INVARIANTS)


def test_every_invariant_is_checked_here_or_tested_elsewhere() -> None:
    here = {name.split("-")[0] for name in INVARIANTS}
    assert [number for number in NUMBERED if number not in here | set(TESTED_ELSEWHERE)] == []


def test_the_tests_of_other_invariants_exist() -> None:
    places = [place for text in TESTED_ELSEWHERE.values() for place in re.findall(r"tests/[\w/.]+", text)]
    assert places
    assert [place for place in places if not (ROOT / place).exists()] == []
