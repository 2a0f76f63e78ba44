"""The list of invariants is what is judged, no more and no less, and it says where the rest is proven."""

import re
from pathlib import Path

from loadline.sim import chaos
from loadline.sim.chaos.invariants import ELSEWHERE, INVARIANTS

ROOT = Path(__file__).parents[2]
NUMBERED = [f"I{number}" for number in range(1, 22)] + [f"L{number}" for number in range(1, 7)]


def test_every_invariant_is_judged_and_every_judgement_is_listed() -> None:
    sources = [path.read_text() for path in Path(chaos.__path__[0]).glob("*.py") if path.name != "invariants.py"]
    judged = {name for source in sources for name in re.findall(r'"([A-Z]\d*-[a-z-]+)"', source)}
    assert judged == set(INVARIANTS)


def test_every_number_is_judged_here_or_proven_elsewhere() -> None:
    here = {name.split("-")[0] for name in INVARIANTS}
    assert [number for number in NUMBERED if number not in here | set(ELSEWHERE)] == []


def test_what_is_proven_elsewhere_is_there() -> None:
    places = [place for text in ELSEWHERE.values() for place in re.findall(r"tests/[\w/.]+", text)]
    assert places
    assert [place for place in places if not (ROOT / place).exists()] == []
