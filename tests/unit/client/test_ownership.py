"""Ownership of requests: at most one owner at any time, for any loss and order of messages."""

from collections.abc import Iterator

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import Struct

from loadline.client.handover.held_requests import HeldRequests
from loadline.client.handover.ownership import RequestOwner, RequestOwners


def test_a_claim_is_granted_for_the_next_hop_only_and_may_be_repeated() -> None:
    owners = RequestOwners()
    assert owners.assign("r", "a", 1) == 0
    assert not owners.claim("r", "b", 2, 0), "a's"
    assert not owners.claim("r", "b", 2, 2), "a hop that was never assigned"
    assert owners.claim("r", "b", 2, 1)
    assert owners.claim("r", "b", 2, 1)
    assert not owners.claim("r", "a", 1, 1), "b has claimed this hop before"
    assert not owners.claim("r", "b", 3, 1), "another incarnation of b"
    assert not owners.claim("r", "a", 1, 0)
    assert owners.owner("r") == RequestOwner("b", 2, 1)


def test_output_counts_under_the_hop_of_its_owner_only() -> None:
    owners = RequestOwners()
    owners.assign("r", "a", 1)
    owners.claim("r", "b", 1, 1)
    assert [owners.accepts("r", hop) for hop in (0, 1, 2)] == [False, True, False]
    assert not owners.accepts("other", 0)


def test_an_ended_request_has_no_owner() -> None:
    owners = RequestOwners()
    owners.assign("r", "a", 1)
    owners.end("r")
    owners.end("r")
    assert not owners.claim("r", "a", 1, 1)
    assert owners.owner("r") is None
    assert len(owners) == 0


def test_earlier_claims_do_not_apply_to_a_retried_request() -> None:
    owners = RequestOwners()
    owners.assign("r", "a", 1)
    assert owners.assign("r", "c", 1) == 1
    assert not owners.claim("r", "b", 1, 1)
    assert owners.accepts("r", 1)


def test_source_and_destination_have_the_same_state_after_a_handover() -> None:
    source, destination = HeldRequests(), HeldRequests()
    assert source.assign("r", 0)
    assert source.hand_over("r") == 1
    assert source.hand_over("r") is None
    assert destination.expect("r", 1)
    assert destination.expect("r", 1), "a repeated handover repeats the claim"
    assert source.unresolved() == destination.unresolved() == [("r", 1)]
    assert source.hop("r") is destination.hop("r") is None
    assert destination.resolve_claim("r", 1, granted=True) == "run"
    assert destination.resolve_claim("r", 1, granted=True) == "ignore"
    assert source.resolve_claim("r", 1, granted=False) == "drop"
    assert (source.hop("r"), destination.hop("r")) == (None, 1)
    assert not destination.expect("r", 1), "the request is running already"
    assert not source.expect("r", 1), "an outdated handover"
    assert not source.assign("r", 0), "an outdated assignment"


def test_an_answer_to_an_earlier_claim_is_ignored() -> None:
    holds = HeldRequests()
    holds.expect("r", 1)
    holds.resolve_claim("r", 1, granted=True)
    holds.hand_over("r")
    assert holds.resolve_claim("r", 1, granted=True) == "ignore"
    assert holds.resolve_claim("r", 1, granted=False) == "ignore"
    assert holds.unresolved() == [("r", 2)]


def test_the_memory_of_ended_requests_is_bounded() -> None:
    holds = HeldRequests()
    for number in range(5_000):
        holds.assign(f"r{number}", 0)
        holds.end(f"r{number}")
    assert len(holds._ended) == 4_096
    assert not holds.assign("r4999", 0)
    assert holds.assign("r4999", 1)


class Assign(Struct, frozen=True):
    hop: int


class Offer(Struct, frozen=True):
    hop: int


class Claim(Struct, frozen=True):
    hop: int


class Answer(Struct, frozen=True):
    hop: int
    is_granted: bool


class Message(Struct, frozen=True):
    """Message to or from one incarnation of a worker."""

    worker: str
    incarnation: int
    content: Assign | Offer | Claim | Answer


OTHER = {"a": "b", "b": "a"}
WORKERS = st.sampled_from(sorted(OTHER))


class Fleet(RuleBasedStateMachine):
    """One request, a frontend and two workers. Messages are lost, repeated and late, and workers die."""

    def __init__(self) -> None:
        super().__init__()
        self.owners = RequestOwners()
        self.holds = {name: HeldRequests() for name in OTHER}
        self.incarnations = dict.fromkeys(OTHER, 1)
        self.messages: list[Message] = []
        self.suspected = False
        """True if the frontend took a living worker for dead: it may continue, but its output is ignored."""
        self.assign("a")

    def assign(self, worker: str) -> None:
        self.owners.assign("r", worker, self.incarnations[worker])
        self.repeat_assignment()

    def repeat_assignment(self) -> None:
        owner = self.owners.owner("r")
        assert owner is not None
        self.messages.append(Message(owner.worker, owner.incarnation, Assign(owner.hop)))

    @rule(source=WORKERS)
    def hand_over(self, source: str) -> None:
        hop = self.holds[source].hand_over("r")
        if hop is not None:
            self.messages.append(Message(OTHER[source], self.incarnations[OTHER[source]], Offer(hop)))

    @rule(worker=WORKERS)
    def claim(self, worker: str) -> None:
        self.messages += [
            Message(worker, self.incarnations[worker], Claim(hop)) for _, hop in self.holds[worker].unresolved()
        ]

    @rule()
    def assign_again(self) -> None:
        self.repeat_assignment()

    @precondition(lambda self: self.messages)
    @rule(data=st.data(), repeated=st.booleans())
    def arrive(self, data: st.DataObject, repeated: bool) -> None:  # noqa: FBT001 - drawn
        place = data.draw(st.integers(0, len(self.messages) - 1))
        message = self.messages[place] if repeated else self.messages.pop(place)
        self.read(message)

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.messages.pop(data.draw(st.integers(0, len(self.messages) - 1)))

    @rule(worker=WORKERS)
    def die(self, worker: str) -> None:
        """Restart a worker without its state."""
        self.incarnations[worker] += 1
        self.holds[worker] = HeldRequests()

    @rule(worker=WORKERS)
    def notice_a_death(self, worker: str) -> None:
        if not self.owner_lives():
            self.assign(worker)

    @rule()
    def suspect(self) -> None:
        owner = self.owners.owner("r")
        assert owner is not None
        self.suspected = True
        self.assign(OTHER[owner.worker])

    def owner_lives(self) -> bool:
        owner = self.owners.owner("r")
        return owner is not None and self.incarnations[owner.worker] == owner.incarnation

    def read(self, message: Message) -> None:
        content, holds = message.content, self.holds[message.worker]
        if isinstance(content, Claim):
            is_granted = self.owners.claim("r", message.worker, message.incarnation, content.hop)
            self.messages.append(Message(message.worker, message.incarnation, Answer(content.hop, is_granted)))
        elif message.incarnation != self.incarnations[message.worker]:
            return  # to an earlier incarnation
        elif isinstance(content, Assign):
            holds.assign("r", content.hop)
        elif isinstance(content, Offer):
            holds.expect("r", content.hop)
        else:
            holds.resolve_claim("r", content.hop, granted=content.is_granted)

    def running(self) -> Iterator[tuple[str, int]]:
        for name, holds in self.holds.items():
            if (hop := holds.hop("r")) is not None:
                yield name, hop

    @invariant()
    def never_two_owners(self) -> None:
        running = list(self.running())
        assert self.suspected or len(running) <= 1
        accepted = [name for name, hop in running if self.owners.accepts("r", hop)]
        owner = self.owners.owner("r")
        assert owner is not None
        assert accepted in ([], [owner.worker])
        assert all(hop <= owner.hop for _, hop in running), "a worker runs it under a hop that was not claimed"

    def teardown(self) -> None:
        """Deliver all messages; then the request must run."""
        for _ in range(3):
            if not self.owner_lives():
                self.assign("a")
            self.repeat_assignment()
            for worker in OTHER:
                self.claim(worker)
            while self.messages:
                self.read(self.messages.pop(0))
        self.never_two_owners()
        assert [hop for _, hop in self.running() if self.owners.accepts("r", hop)], "the request is lost"
        assert not [claims for holds in self.holds.values() if (claims := holds.unresolved())], (
            "the request stays without an owner"
        )


Fleet.TestCase.settings = settings(max_examples=300, stateful_step_count=40)
TestFleet = Fleet.TestCase
