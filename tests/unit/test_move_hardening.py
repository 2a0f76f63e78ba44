"""Reports that cannot be true, workers that are silent or come back, settings that change: nothing of it spreads."""

from msgspec import Raw
from msgspec.structs import replace

from loadline.core.controller import Controller
from loadline.core.events import BusConnectionChanged, MoveReported, RegistryRead, SettingsChanged, WorkerDrained
from loadline.core.moves import Move, MoveEnd
from loadline.core.observed import RegisteredWorker
from loadline.core.rescheduling.flights import Flight
from loadline.core.rescheduling.knobs import ReschedulingKnobs
from loadline.wire.codec import encode
from tests.support.movers import Movers, pairs

LOAD = ReschedulingKnobs(rescheduling_policies=("decode_load",), rescheduling_decode_load_threshold=0.5)
FAILOVER = ReschedulingKnobs(rescheduling_policies=("decode_failover",), failover_domain="node")


def asked() -> tuple[Movers, Move]:
    world = Movers(LOAD)
    world.join("a", 800, 8)
    (move,) = world.join("b", 100, 1)
    return world, move


def open_flights(world: Movers) -> dict[str, Flight]:
    return world.controller.state.rescheduling.flights.open


def report(command_id: str = "c", *, epoch: int = 7, source: str = "a", incarnation: int = 1) -> MoveReported:
    ends = MoveEnd("decode", source, incarnation), MoveEnd("decode", "b", 1)
    return MoveReported(command_id, "m", epoch, *ends, "decode_load", "copying", 900, 0, 0, 10, 5)


def test_reports_of_lives_and_terms_that_never_were_are_not_followed() -> None:
    world, move = asked()
    world.tell(report("1", source="nobody"), report("2", incarnation=9), report("3", epoch=8))
    assert open_flights(world).keys() == {move.command_id}


def test_one_worker_cannot_fill_the_memory_with_moves() -> None:
    world, _ = asked()
    for number in range(1_000):
        world.tell(report(f"c{number}"))
    flights = open_flights(world).values()
    assert len(flights) == 64
    assert max(flight.slots for flight in flights) == 64


def test_a_report_of_another_move_under_the_same_id_changes_nothing() -> None:
    world, move = asked()
    before = open_flights(world)[move.command_id]
    for other in (report(epoch=6), report(source="b"), report(incarnation=2)):
        world.tell(replace(other, command_id=move.command_id))
    assert before.phase == "asked"


def test_a_source_does_not_count_for_more_than_it_was_asked_for() -> None:
    world, move = asked()
    world.answer(move, requests=1_000_000, tokens=100)
    assert open_flights(world)[move.command_id].slots <= move.requests_max


def test_who_moves_nothing_follows_nothing() -> None:
    world = Movers(LOAD)
    still = replace(world.settings.models[0], rescheduling=ReschedulingKnobs())
    other = Controller(replace(world.settings, models=(still,)))
    there = [world.worker("a").worker, world.worker("b").worker]
    other.handle([BusConnectionChanged(connected=True), RegistryRead(there), report()], world.now)
    assert other.state.rescheduling.flights.open == {}
    wake = other.state.rescheduling.next_wake()
    assert wake is None


def test_a_source_that_does_not_answer_takes_no_slots_of_others() -> None:
    world = Movers(replace(LOAD, moves_max=4))
    world.join("cold", 100, 1)
    world.join("colder", 0, 0)
    (move, *_) = world.join("hot", 900, 9)
    world.answer(move, accepted=None)
    assert open_flights(world)[move.command_id].slots == 0
    assert pairs(world.join("hotter", 950, 9)) != []


def domain() -> Movers:
    world = Movers(FAILOVER)
    for name, node in (("a0", "a"), ("a1", "a"), ("b0", "b")):
        world.tell(world.worker(name, node=node))
        world.tell(world.report(name, 10, 1))
    return world


def test_a_worker_that_is_read_again_has_not_vanished() -> None:
    world = domain()
    world.leave("a0")
    world.tell(RegistryRead([RegisteredWorker(record, 5) for record in world.records.values()]))
    assert world.controller.state.rescheduling.vanished == {}
    assert world.wait(10_000) == []


def test_a_worker_that_was_emptied_has_not_vanished_whoever_leads() -> None:
    world = domain()
    world.leave("a0")
    world.tell(WorkerDrained("m", "decode", "a0", 1))
    assert world.controller.state.rescheduling.vanished == {}


def test_nobody_is_remembered_as_failing_while_nothing_may_be_asked() -> None:
    world = domain()
    world.tell(world.said("a0", schedulable=False))
    failing = world.controller.state.rescheduling.failing
    assert len(failing["m"]) == 1
    world.tell(BusConnectionChanged(connected=False))
    world.wait(2_000)
    assert failing == {}


def test_of_policies_that_are_gone_nothing_is_kept() -> None:
    world = domain()
    world.tell(world.said("a0", schedulable=False))
    looks = world.controller.state.rescheduling.looks
    assert looks.keys() == {"m\0decode\0drain", "m\0decode\0decode_failover"}
    model = world.settings.models[0]
    settings = replace(world.settings, models=(replace(model, rescheduling=replace(LOAD, enable_rescheduling=True)),))
    world.tell(SettingsChanged(Raw(encode(settings))))
    assert not any(key.endswith("failover") for key in looks)


def test_a_move_of_the_leader_before_is_followed_for_as_long_as_moves_are_given() -> None:
    world = Movers(replace(LOAD, move_ttl_ms=300_000))
    world.join("a", 400, 4)
    world.join("b", 100, 1)
    world.tell(report("of-old", epoch=6))
    world.wait(300_000)
    assert "of-old" in open_flights(world)
    world.wait(3_000)
    assert "of-old" not in open_flights(world)


def test_what_an_earlier_life_says_does_not_speak_for_one_that_has_vanished() -> None:
    world = Movers(FAILOVER)
    for name in ("a0", "a1", "b0"):
        world.tell(world.worker(name, node=name[0], incarnation=2))
        world.tell(world.report(name, 10, 1))
    ghost = replace(world.said("a0"), incarnation=1)
    world.leave("a0")
    asked = []
    for _ in range(6):
        asked += world.wait(1_000, silent=("a0",))
        world.tell(ghost)
    assert pairs(asked)[:1] == [("a1", "b0")]


def test_names_of_nodes_that_are_gone_are_forgotten() -> None:
    world = Movers(LOAD)
    planner = world.controller._rescheduler
    for life in range(1, 6_001):
        world.tell(world.worker("a", incarnation=life, node=f"n{life}"), world.report("a", 10, 1))
    assert len(planner._nodes) < 5_000
