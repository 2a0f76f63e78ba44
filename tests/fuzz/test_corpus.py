"""The kept corpus and some mutants of it: nothing escapes. ``make fuzz`` looks for more, guided by coverage."""

import random
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from tests.fuzz.corpus import FOLDER, kept
from tests.fuzz.mutation import mutate, words_of
from tests.fuzz.target import Escape, Target, check_growth, silence_logs
from tests.fuzz.targets import TARGETS

MUTANTS = 200
PATIENCE = 100.0
"""Factor of the allowed CPU time: what takes longer does not end, however busy the machine is."""


@pytest.fixture(autouse=True)
def no_logs() -> Iterator[None]:
    with silence_logs():
        yield


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_nothing_escapes(target: Target) -> None:
    inputs = [*target.seeds, *kept(target)]
    rng, words = random.Random(target.name), words_of(target.seeds)
    for data in [*inputs, *(mutate(rng, rng.choice(inputs), words) for _ in range(MUTANTS))]:
        try:
            target.examine(data, PATIENCE)
        except Escape as escape:
            escape.add_note(f"the input is {data!r}")
            raise
    check_growth(target, inputs, PATIENCE)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_seeds_are_valid(target: Target) -> None:
    """Mutants of input that is refused at its first byte would test nothing."""
    assert target.seeds
    refused = []
    for seed in target.seeds:
        try:
            target.run(seed)
        except target.declared as error:
            refused.append(f"{seed[:60]!r}: {error}")
    assert len(refused) < len(target.seeds), refused


def test_each_file_of_the_corpus_is_that_of_a_target() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(TARGETS)


def test_escapes_are_seen() -> None:
    held: list[bytes] = []

    def read(data: bytes) -> None:
        if data == b"raise":
            raise KeyError(data)
        if data == b"refuse":
            raise ValueError(data)
        if data == b"hold":
            held.extend(bytes(1_000) + data for _ in range(1_000))
        if data == b"loop":
            sum(range(3_000_000))

    target = Target("t", read, [b"x"], (ValueError,))
    target.examine(b"refuse")
    with pytest.raises(Escape, match="KeyError"):
        target.examine(b"raise")
    with pytest.raises(Escape, match="4 bytes took"):
        target.examine(b"loop")
    patient = replace(target, ms_max=1_000.0)  # a million bytes may take a busy machine longer than a decoder may
    with pytest.raises(Escape, match="objects remain"):
        check_growth(patient, [b"hold"])
