"""Destinations of handovers, and the frontend that owns the requests."""

from loadline.client.handover.effects import (
    DiscardRequest,
    ExpireRoom,
    ReplyHandover,
    RunRequest,
    SendClaim,
)
from loadline.client.handover.messages import (
    ClaimReply,
    ClaimRequest,
    HandedRequest,
    HandoverRequest,
    RoomRequest,
)
from loadline.client.handover.migrator import FreeSlots
from loadline.client.handover.ownership import RequestOwner, RequestOwners
from tests.support.handovers import NO, NOT_TAKEN, TAKEN, YES, kinds, worker

# -- the destination ---------------------------------------------------------------------------------------------------


def room(name: str, kv_tokens: int = 10, ttl_ms: int = 1_000) -> RoomRequest:
    return RoomRequest(name, 2, kv_tokens, ttl_ms)


def handed(name: str, hop: int = 1) -> HandoverRequest:
    return HandoverRequest(HandedRequest(name, "f", hop, 1, b"state"), 2)


def test_room_reserves_a_slot_and_cache_until_it_is_released_or_expires() -> None:
    migrator, _ = worker("b", 2, slots_in=2)
    destination = migrator.destination
    assert destination.on_room_request(room("x", 30), fits=True) == (YES, [ExpireRoom("x", 1, 3_000)])
    assert destination.on_room_request(room("y"), fits=True)[0] == YES
    assert destination.on_room_request(room("z"), fits=True) == (NO, [])
    assert destination.on_room_request(room("x", 30), fits=True)[0] == YES, "a repeated request for room"
    assert (destination.expected, destination.free_slots) == (["x", "y"], 0)
    assert (destination.reserved_kv_tokens("y"), destination.reserved_kv_tokens("")) == (30, 40)
    assert destination.on_room_request(room("x", 0, ttl_ms=0), fits=True) == (NO, [])
    assert destination.free_slots == 1
    destination.on_room_expired("y", 2)
    destination.on_room_expired("y", 2)
    assert (destination.free_slots, destination.reserved_kv_tokens("")) == (2, 0)


def test_the_timer_of_an_earlier_reservation_does_not_release_a_later_one() -> None:
    destination = worker("b", 2, slots_in=1)[0].destination

    def timer(kv_tokens: int) -> int:
        _, effects = destination.on_room_request(room("x", kv_tokens), fits=True)
        assert isinstance(effects[0], ExpireRoom)
        return effects[0].reservation

    first = timer(10)
    destination.on_room_request(room("x", 0, ttl_ms=0), fits=True)
    second = timer(20)
    destination.on_room_expired("x", first)
    assert (destination.expected, destination.reserved_kv_tokens("")) == (["x"], 20)
    third = timer(30)  # the source's message that released the second one was lost
    destination.on_room_expired("x", second)
    assert (destination.expected, destination.reserved_kv_tokens("")) == (["x"], 30)
    destination.on_room_expired("x", third)
    assert destination.expected == []


def test_full_draining_and_incapable_workers_refuse_room() -> None:
    migrator, _ = worker("b", 2)
    assert migrator.destination.on_room_request(room("x"), fits=False) == (NO, [])
    migrator.drain()
    assert migrator.destination.on_room_request(room("x"), fits=True) == (NO, [])
    assert migrator.free_slots(9) == FreeSlots(0, 9)
    unable, _ = worker("b", 2, supported=False)
    assert unable.destination.on_room_request(room("x"), fits=True) == (NO, [])


def test_messages_to_another_incarnation_are_refused() -> None:
    destination = worker("b", 2)[0].destination
    assert [destination.is_addressed(incarnation) for incarnation in (1, 2, 3)] == [False, True, False]


def test_a_request_runs_only_after_its_claim_is_granted() -> None:
    migrator, held = worker("b", 2)
    destination = migrator.destination
    destination.on_room_request(room("r"), fits=True)
    reply, effects = destination.on_handover_request(handed("r"), 10)
    assert reply is None
    assert effects == [DiscardRequest("r"), SendClaim("f", ClaimRequest("r", "b", 2, 1))]
    assert held.hop("r") is None
    assert migrator.on_claim_reply("r", 1, ClaimReply(granted=True, worker="b", incarnation=2), 20) == [
        RunRequest(handed("r").request),
        ReplyHandover("r", 1, TAKEN),
    ]
    assert held.hop("r") == 1
    assert destination.free_slots == 4


def test_a_request_whose_claim_is_refused_is_dropped() -> None:
    migrator, held = worker("b", 2)
    migrator.destination.on_handover_request(handed("r"), 10)
    assert migrator.on_claim_reply("r", 1, ClaimReply(granted=False, worker="a", incarnation=1), 20) == [
        DiscardRequest("r"),
        ReplyHandover("r", 1, NOT_TAKEN),
    ]
    assert (held.hop("r"), held.unresolved()) == (None, [])
    assert migrator.destination.on_handover_request(handed("r"), 30) == (NOT_TAKEN, []), "a late handover is refused"


def test_a_destination_discards_the_request_if_the_frontend_does_not_answer() -> None:
    migrator, held = worker("b", 2, claim_timeout_ms=1_000)
    migrator.destination.on_handover_request(handed("r"), 0)
    assert kinds(migrator.on_claim_reply("r", 1, None, 1_000)) == [SendClaim]
    assert kinds(migrator.on_claim_reply("r", 1, None, 1_001)) == [DiscardRequest, ReplyHandover]
    assert held.unresolved() == []


def test_a_repeated_handover_is_claimed_once_and_gets_the_same_answer() -> None:
    migrator, _ = worker("b", 2)
    assert migrator.destination.on_handover_request(handed("r"), 10)[0] is None
    assert migrator.destination.on_handover_request(handed("r"), 11) == (None, []), "both wait for one claim"
    granted = ClaimReply(granted=True, worker="b", incarnation=2)
    assert migrator.on_claim_reply("r", 1, granted, 20) != []
    assert migrator.on_claim_reply("r", 1, granted, 21) == [], "a repeated answer has no effect"
    assert migrator.destination.on_handover_request(handed("r"), 30) == (TAKEN, [])


def test_a_request_whose_room_has_expired_needs_a_free_slot() -> None:
    migrator, held = worker("b", 2, slots_in=1)
    destination = migrator.destination
    destination.on_room_request(room("x"), fits=True)
    assert destination.on_handover_request(handed("r"), 10) == (NOT_TAKEN, [])
    assert held.unresolved() == []
    destination.on_room_expired("x", 1)
    assert destination.on_handover_request(handed("r"), 20)[0] is None
    destination.on_room_expired("r", 2)
    assert destination.expected == ["r"], "the claim is pending"


def test_a_request_that_runs_under_an_earlier_hop_is_stopped_before_the_claim() -> None:
    migrator, held = worker("b", 2)
    held.assign("r", 3)
    assert migrator.destination.on_handover_request(handed("r", 3), 10) == (TAKEN, []), (
        "the request is already running under this hop"
    )
    _, effects = migrator.destination.on_handover_request(handed("r", 5), 10)
    assert effects[0] == DiscardRequest("r")
    assert held.hop("r") is None
    assert migrator.destination.on_handover_request(handed("r", 4), 11) == (NOT_TAKEN, []), "an older hop is refused"


# -- the frontend ------------------------------------------------------------------------------------------------------


def test_the_frontend_answers_a_claim_with_the_owner() -> None:
    owners = RequestOwners()
    owners.assign("r", "a", 1)
    assert owners.answer(ClaimRequest("r", "b", 2, 1)) == ClaimReply(granted=True, worker="b", incarnation=2)
    assert owners.answer(ClaimRequest("r", "a", 1, 1)) == ClaimReply(granted=False, worker="b", incarnation=2)
    assert owners.answer(ClaimRequest("r", "b", 2, 1)).granted, "a repeated claim is granted again"
    assert owners.owner("r") == RequestOwner("b", 2, 1)
    owners.end("r")
    assert owners.answer(ClaimRequest("r", "b", 2, 1)) == ClaimReply(granted=False)
