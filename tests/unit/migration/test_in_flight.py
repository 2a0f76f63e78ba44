"""Moves in flight: nothing is asked twice, slots are reckoned with, and each move ends in our books as in truth."""

import msgspec
import pytest
from msgspec.structs import replace

from loadline.core.migration.in_flight import ENDED_RETENTION_MS, InFlightMigration
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.vocabulary.events import MigrationReported
from loadline.core.vocabulary.migrations import Migration, MigrationEndpoint, MigrationReportPhase
from tests.support.movers import Movers, pairs

LOAD = MigrationKnobs(
    policies=("decode_load",),
    decode_load_threshold=0.5,
    load_balance_threshold=0.2,
    req_select_value=0.0,
)
FAILOVER = replace(LOAD, policies=("decode_failover",))


def moved(knobs: MigrationKnobs = LOAD) -> tuple[Movers, str]:
    """A world in which ``hot`` was asked to give 400 tokens, 4 requests, to ``cold``; and the id of that."""
    world = Movers(knobs)
    world.join("cold", 0, 0)
    (move,) = world.join("hot", 800, 8)
    assert pairs([move]) == [("hot", "cold")]
    return world, move.command_id


def flight(world: Movers, command_id: str) -> InFlightMigration | None:
    return world.controller.state.migration.in_flight.open.get(command_id)


def outcomes(world: Movers) -> dict[str, int]:
    return world.controller.state.fleet.models["m"].migration.tally.commands


def test_nothing_is_asked_twice() -> None:
    world, _ = moved()
    assert world.wait(20_000) == []
    assert world.tell(world.report("hot", 950, 9)) == []


def test_what_is_on_its_way_counts_as_there() -> None:
    world, _ = moved()
    world.join("other", 300, 3)  # cold will have 400, so this is the emptiest now
    assert pairs(world.tell(world.worker("hot2"), world.report("hot2", 800, 8))) == [("hot2", "other")]


def test_who_takes_in_gives_nothing_away_and_who_gives_away_takes_nothing_in() -> None:
    world, _ = moved()
    world.join("empty", 0, 0)
    assert world.tell(world.report("cold", 900, 9), world.report("hot", 0, 0)) == []


@pytest.mark.parametrize("accepted", [True, None])
def test_an_answer_changes_nothing_of_that(*, accepted: bool | None) -> None:
    world, command_id = moved()
    (move,) = (one.command for one in world.controller.state.migration.in_flight.open.values())
    assert world.answer(move, accepted=accepted, requests=4, tokens=400) == []
    assert flight(world, command_id) is not None
    assert world.wait(20_000) == []


def test_a_refusal_frees_both_and_the_source_is_asked_again_when_it_has_reported() -> None:
    world, command_id = moved()
    found = flight(world, command_id)
    assert found is not None
    assert world.answer(found.command, accepted=False, requests=0, reason="no_slots") == []
    assert flight(world, command_id) is None
    world.now += 1
    assert world.tell(world.said("cold")) == []
    assert pairs(world.tell(world.said("hot"))) == [("hot", "cold")]
    assert outcomes(world) == {"decode_load:planned": 2, "decode_load:refused:no_slots": 1}


def test_slots_are_those_of_requests_that_are_still_under_way() -> None:
    world, command_id = moved()
    found = flight(world, command_id)
    assert found is not None
    assert found.slots == found.command.requests_max
    world.answer(found.command, requests=4, tokens=400)
    assert found.slots == 4
    world.phase(found.command, "admitted", requests=4)
    world.phase(found.command, "switched", moved=1, tokens=100, requests=4)
    assert found.slots == 3
    world.phase(found.command, "copying", moved=1, failed=1, requests=4)
    assert found.slots == 2
    world.phase(found.command, "done", moved=3, failed=1, tokens=300, requests=4)
    assert (found.slots, found.ended) == (0, True)


def test_a_slot_that_has_become_free_is_used_in_the_same_turn() -> None:
    world = Movers(FAILOVER)
    world.join("a", 0, 0, migration_slots_in=1)
    world.join("ill", 100, 10)
    (first,) = world.tell(world.said("ill", schedulable=False))
    world.answer(first, requests=1, tokens=10)
    world.tell(world.said("a", migration_slots_in=0))
    world.now += 1
    (second,) = world.phase(first, "done", moved=1, tokens=10)
    assert pairs([second]) == [("ill", "a")]
    assert second.command_id != first.command_id


def test_free_slots_that_were_said_while_moves_were_under_way_are_beside_these() -> None:
    world = Movers(FAILOVER)
    world.join("a", 0, 0, migration_slots_in=4)
    world.join("ill", 100, 2)
    (first,) = world.tell(world.said("ill", schedulable=False))
    world.answer(first, requests=2, tokens=20)
    world.tell(world.said("a", migration_slots_in=2))
    world.join("worse", 100, 9)
    (second,) = world.tell(world.said("worse", schedulable=False))
    assert (second.source.worker, second.requests_max) == ("worse", 2)


@pytest.mark.parametrize(("phase", "outcome"), [("done", "done"), ("aborted", "aborted:finished")])
def test_a_move_ends_once_however_often_it_is_said(phase: MigrationReportPhase, outcome: str) -> None:
    world, command_id = moved()
    found = flight(world, command_id)
    assert found is not None
    world.answer(found.command, requests=1, tokens=100)
    for _ in range(3):
        done = int(phase == "done")
        reason = "" if done else "finished"
        world.phase(found.command, phase, moved=done, failed=1 - done, tokens=100 * done, reason=reason)  # type: ignore[arg-type]  # one of the two
    assert outcomes(world)[f"decode_load:{outcome}"] == 1
    tally = world.controller.state.fleet.models["m"].migration.tally
    assert tally.requests == ({"decode_load": 1} if done else {})
    assert tally.tokens == ({"decode_load": 100} if done else {})


def test_what_has_moved_counts_until_both_have_reported() -> None:
    world, command_id = moved()
    found = flight(world, command_id)
    assert found is not None
    world.answer(found.command, requests=4, tokens=400)
    world.now += 100
    assert world.phase(found.command, "done", moved=4, tokens=400, requests=4) == []
    world.now += 100
    assert world.tell(world.report("hot", 400, 4)) == []  # cold still says that it is empty
    assert world.tell(world.report("cold", 400, 4)) == []
    world.now += ENDED_RETENTION_MS
    assert world.tell() == []
    assert flight(world, command_id) is None


def test_a_move_that_nobody_speaks_of_is_given_up_with_an_alarm() -> None:
    world, command_id = moved(replace(LOAD, ttl_ms=10_000))
    world.wait(11_000)
    assert flight(world, command_id) is not None
    again = world.wait(1_000)
    assert flight(world, command_id) is None
    assert pairs(again) == [("hot", "cold")]
    assert [alarm.kind for alarm in world.alarms] == ["migration_lost"]
    assert outcomes(world)["decode_load:lost:deadline"] == 1


def test_reports_come_faster_than_the_answer() -> None:
    world, command_id = moved()
    found = flight(world, command_id)
    assert found is not None
    world.phase(found.command, "admitted", requests=2)
    world.answer(found.command, requests=2, tokens=200)
    assert found.phase == "admitted"
    assert found.slots == 2


def test_a_move_is_over_when_its_source_is_gone() -> None:
    world, command_id = moved()
    world.leave("hot")
    world.wait(world.knobs.suspect_after_ms, silent=("hot",))
    assert flight(world, command_id) is not None
    world.wait(1_000, silent=("hot",))
    assert flight(world, command_id) is None
    assert outcomes(world)["decode_load:lost:source_lost"] == 1


def test_a_source_that_is_only_cut_off_from_the_store_says_how_its_move_ends() -> None:
    world, command_id = moved()
    found = flight(world, command_id)
    assert found is not None
    world.leave("hot")
    world.wait(2 * world.knobs.suspect_after_ms)
    world.phase(found.command, "done", moved=1, tokens=50)
    assert outcomes(world)["decode_load:done"] == 1


def test_a_new_life_of_the_source_has_no_part_in_moves_of_the_old_one() -> None:
    world, command_id = moved()
    world.tell(world.worker("hot", incarnation=2))
    assert flight(world, command_id) is None


def test_a_move_whose_destination_is_gone_is_ended_by_its_source() -> None:
    world, command_id = moved()
    found = flight(world, command_id)
    assert found is not None
    world.answer(found.command, requests=4, tokens=400)
    world.leave("cold")
    assert flight(world, command_id) is found
    world.phase(found.command, "aborted", failed=4, reason="destination_lost", requests=4)
    assert found.ended


def test_moves_of_the_leader_before_are_followed_from_their_first_report() -> None:
    world = Movers(replace(LOAD, migrations_max=1))
    world.join("cold", 0, 0)
    world.join("hot", 400, 4)
    ends = MigrationEndpoint("decode", "hot", 1), MigrationEndpoint("decode", "cold", 1)
    report = MigrationReported("before", "m", 6, *ends, "decode_load", "copying", 1, 0, 0, 0, 5)
    world.tell(report)
    assert flight(world, "before") is not None
    assert world.tell(world.report("hot", 900, 9)) == []
    assert world.tell(replace(report, phase="done", moved=1, tokens=100)) == []
    world.now += world.knobs.interval_ms
    assert pairs(world.tell()) == [("hot", "cold")]


def test_the_end_of_a_move_that_nobody_knows_is_no_news() -> None:
    world, _ = moved()
    ends = MigrationEndpoint("decode", "hot", 1), MigrationEndpoint("decode", "cold", 1)
    world.tell(MigrationReported("unknown", "m", 6, *ends, "decode_load", "done", 1, 1, 0, 100, 5))
    assert flight(world, "unknown") is None
    assert outcomes(world) == {"decode_load:planned": 1}


def test_ids_differ_and_are_the_same_in_every_run() -> None:
    ids = [[move.command_id for move in spread()] for _ in range(2)]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == len(ids[0]) == 3


def spread() -> list[Migration]:
    world = Movers(FAILOVER)
    for name in ("a", "b", "c"):
        world.join(name, 0, 0)
    world.join("ill", 90, 9)
    return world.tell(world.said("ill", schedulable=False))


def test_snapshots_hold_what_is_in_flight() -> None:
    world, command_id = moved()
    snapshot = msgspec.json.decode(world.controller.snapshot())
    assert list(snapshot["state"]["migration"]["in_flight"]["open"]) == [command_id]
