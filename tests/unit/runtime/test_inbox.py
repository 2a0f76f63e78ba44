"""What waits for the next turn."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from loadline.core.vocabulary.events import AnyEvent, StoreConnectionChanged
from loadline.runtime.inbox import Inbox


def inbox(frames_max: int = 4) -> tuple[Inbox, list[None]]:
    woken: list[None] = []
    return Inbox(frames_max, lambda: woken.append(None)), woken


def test_everything_wakes_and_is_taken_once() -> None:
    box, woken = inbox()
    assert not box
    event: AnyEvent = StoreConnectionChanged(connected=True)
    box.offer("a", b"1")
    box.put(event)
    assert (bool(box), len(woken)) == (True, 2)
    assert box.pop_batch(10) == ([event], [("a", b"1")])
    assert not box
    assert box.pop_batch(10) == ([], [])


def test_when_full_the_oldest_of_the_same_subject_gives_way() -> None:
    box, _ = inbox(3)
    for subject, payload in [("a", b"1"), ("b", b"1"), ("b", b"2"), ("b", b"3"), ("a", b"2")]:
        box.offer(subject, payload)
    assert box.dropped == 2
    assert box.pop_batch(10)[1] == [("a", b"2"), ("b", b"2"), ("b", b"3")]


def test_when_full_a_new_subject_takes_the_place_of_the_oldest_frame_of_the_first() -> None:
    box, _ = inbox(2)
    for subject in ("a", "b", "c"):
        box.offer(subject, b"1")
    assert (box.dropped, box.pop_batch(10)[1]) == (1, [("b", b"1"), ("c", b"1")])


def test_events_are_never_dropped_and_come_first() -> None:
    box, _ = inbox(1)
    events: list[AnyEvent] = [StoreConnectionChanged(connected=bool(n % 2)) for n in range(100)]
    for event in events:
        box.put(event)
        box.offer("a", b"1")
    assert box.pop_batch(0) == (events, [])
    assert box.pop_batch(1) == ([], [("a", b"1")])


def test_a_busy_subject_does_not_starve_the_others() -> None:
    box, _ = inbox(100)
    for number in range(10):
        box.offer("busy", b"%d" % number)
    box.offer("quiet", b"1")
    assert [subject for subject, _ in box.pop_batch(4)[1]] == ["busy"] * 4
    assert ("quiet", b"1") in box.pop_batch(4)[1]


frames = st.lists(st.one_of(st.none(), st.sampled_from("abc")), max_size=80)


@given(frames, st.integers(1, 8), st.integers(1, 5))
def test_bounded_in_order_and_nothing_lost_without_being_counted(
    offers: list[str | None], frames_max: int, batch_max: int
) -> None:
    box, _ = inbox(frames_max)
    taken: list[tuple[str, bytes]] = []
    number = 0
    for subject in offers:
        if subject is None:
            _, some = box.pop_batch(batch_max)
            assert len(some) <= batch_max
            taken += some
        else:
            number += 1
            box.offer(subject, b"%03d" % number)
        assert sum(map(len, box._frames.values())) == box.waiting <= frames_max
    while box:
        taken += box.pop_batch(batch_max)[1]
    assert len(taken) + box.dropped == number
    for subject in Counter(subject for subject, _ in taken):
        payloads = [payload for name, payload in taken if name == subject]
        assert payloads == sorted(payloads), "the frames of a subject stay in their order"
