"""Inbox of the next turn: bounded, fair to senders, in order."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from loadline.core.vocabulary.events import AnyEvent, StoreConnectionChanged
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.runtime.inbox import UNKNOWN_RATIO, Inbox
from loadline.wire.fair_queue import ROUNDS_MAX, RUN_MAX, FairQueue
from loadline.wire.subjects import Subjects

SUBJECTS = Subjects("loadline")


def inbox(frames_max: int = 4, *known: str) -> tuple[Inbox, list[None]]:
    wakes: list[None] = []
    box = Inbox(frames_max, lambda: wakes.append(None), SUBJECTS)
    for subject in known:
        box.accept(subject)
    return box, wakes


def load(worker: str) -> str:
    return SUBJECTS.load("m", "p", worker)


def test_every_item_wakes_the_loop_and_is_removed_once() -> None:
    box, wakes = inbox()
    assert not box
    event: AnyEvent = StoreConnectionChanged(connected=True)
    box.offer("loadline.v1.load.a", b"1")
    box.put(event)
    assert (bool(box), len(wakes)) == (True, 2)
    assert box.pop_batch(10) == ([event], [("loadline.v1.load.a", b"1")])
    assert not box
    assert box.pop_batch(10) == ([], [])


@given(st.lists(st.sampled_from(["w1", "w2", "other"]), max_size=40))
def test_frames_that_are_read_together_are_queued_as_single_ones_are(workers: list[str]) -> None:
    frames = [(load(worker), b"%d" % number) for number, worker in enumerate(workers)]
    (single, wakes_of_single), (together, wakes) = inbox(400), inbox(400)
    for box in (single, together):
        box.set_workers(WorkerRecord("m", "p", worker, "decode", 1) for worker in ("w1", "w2"))
    for subject, payload in frames:
        single.offer(subject, payload)
    together.offer_all(frames)
    assert together.pop_batch(400) == single.pop_batch(400)
    assert len(wakes) == len(wakes_of_single)


def test_frames_that_are_read_together_drop_those_of_a_flood() -> None:
    box, _ = inbox(4)
    box.set_workers(WorkerRecord("m", "p", worker, "decode", 1) for worker in ("busy", "quiet"))
    box.offer_all([(load("quiet"), b"1"), *((load("busy"), b"%d" % number) for number in range(10))])
    assert box.pop_batch(10)[1] == [(load("quiet"), b"1"), *((load("busy"), b"%d" % number) for number in (7, 8, 9))]
    assert box.dropped == 7


def test_when_full_the_oldest_frame_of_the_same_subject_is_replaced() -> None:
    box, _ = inbox(3, "a", "b")
    for subject, payload in [("a", b"1"), ("b", b"1"), ("b", b"2"), ("b", b"3"), ("a", b"2")]:
        box.offer(subject, payload)
    assert box.dropped == 2
    assert sorted(box.pop_batch(10)[1]) == [("a", b"2"), ("b", b"2"), ("b", b"3")]


def test_when_full_a_new_sender_replaces_a_frame_of_the_longest_queue() -> None:
    box, _ = inbox(4, "a", "b")
    for number in range(10):
        box.offer("a", b"%d" % number)
    box.offer("b", b"1")
    assert ("b", b"1") in box.pop_batch(10)[1]
    assert box.dropped == 7


def test_events_are_never_dropped_and_come_first() -> None:
    box, _ = inbox(1, "a")
    events: list[AnyEvent] = [StoreConnectionChanged(connected=bool(n % 2)) for n in range(100)]
    for event in events:
        box.put(event)
        box.offer("a", b"1")
    assert box.pop_batch(0) == (events, [])
    assert box.pop_batch(1) == ([], [("a", b"1")])


def test_a_flood_of_one_sender_delays_no_other() -> None:
    box, _ = inbox(10_000, "busy", "quiet")
    for number in range(5_000):
        box.offer("busy", b"%d" % number)
    box.offer("quiet", b"1")
    batch = box.pop_batch(512)[1]
    assert ("quiet", b"1") in batch[: RUN_MAX + 1]
    assert len(batch) == ROUNDS_MAX * RUN_MAX + 1, "the flood does not lengthen a turn"


def test_a_flood_of_invented_senders_delays_no_known_worker() -> None:
    box, _ = inbox(8_000)
    box.add_worker(WorkerRecord("m", "p", "honest", "decode", 1))
    for number in range(20_000):
        box.offer(load(f"forged-{number}"), b"1")
    box.offer(load("honest"), b"1")
    for number in range(20_000):
        box.offer(load(f"forged-{number}"), b"1")
    batch = box.pop_batch(512)[1]
    assert batch[0] == (load("honest"), b"1")
    assert len(batch) == 1 + 512 // UNKNOWN_RATIO
    kept = 8_000 // UNKNOWN_RATIO
    assert 40_000 - kept <= box.dropped <= 40_000 - kept * 15 // 16


def test_a_flood_of_invented_workers_leaves_room_for_new_frontends() -> None:
    box, _ = inbox(8_000)
    for number in range(20_000):
        box.offer(load(f"forged-{number}"), b"1")
    box.offer("loadline.v1.traffic.m.new", b"1")
    assert ("loadline.v1.traffic.m.new", b"1") in box.pop_batch(512)[1]


def test_a_flood_of_known_workers_leaves_a_part_of_each_turn_to_unknown_senders() -> None:
    workers = [f"w{number}" for number in range(64)]
    box, _ = inbox(8_000, *map(load, workers))
    for _ in range(100):
        for worker in workers:
            box.offer(load(worker), b"1")
    for number in range(100):
        box.offer("loadline.v1.traffic.m.new", b"%d" % number)
    batch = box.pop_batch(512)[1]
    assert Counter(subject.split(".")[2] for subject, _ in batch) == {"load": 448, "traffic": 64}


def test_a_worker_that_left_is_unknown_unless_it_drains() -> None:
    box, _ = inbox(8)
    for draining in (False, True):
        box.add_worker(WorkerRecord("m", "p", "w", "decode", 1))
        box.remove_worker(("m", "p", "w"), draining=draining)
        box.offer(load("w"), b"1")
        assert box.waiting == draining
        assert len(box.pop_batch(10)[1]) == 1


def test_the_drain_report_of_a_worker_that_has_moved_is_that_of_a_known_sender() -> None:
    box, _ = inbox(8)
    moved = WorkerRecord("m", "decode", "w", "decode", 1, home_pool="prefill")
    report = SUBJECTS.drained("m", "prefill", "w")

    def known() -> bool:
        box.offer(report, b"1")
        found = box.waiting == 1
        assert box.pop_batch(10)[1] == [(report, b"1")]
        return found

    assert not known()
    box.add_worker(replace(moved, pool="prefill", role="prefill", home_pool=""))
    box.add_worker(moved)
    assert known()
    box.remove_worker(("m", "prefill", "w"), draining=False)  # its former key, removed after the new one was written
    assert known()
    box.remove_worker(moved.names, draining=False)
    assert not known()
    box.set_workers([moved])
    assert known()
    box.add_worker(replace(moved, home_pool=""))
    assert not known()
    box.add_worker(moved)
    box.remove_worker(moved.names, draining=True)
    assert known(), "it reports until it is empty"


def test_a_sender_that_is_accepted_again_replaces_no_other() -> None:
    box, _ = inbox(2, "a", "b", "b")
    box.offer("a", b"1")
    assert box.waiting == 1


def test_the_size_of_all_messages_is_bounded() -> None:
    queue: FairQueue[bytes] = FairQueue(100, 1_000, len)
    queue.put("small", b"1")
    for number in range(20):
        queue.put("large", bytes([number]) * 300)
    queue.put("huge", bytes(2_000))
    kept = [message[0] for sender, message in queue.pop_batch(100, 10_000) if sender != "small"]
    assert kept == [17, 18, 19]
    assert queue.dropped == 18


def test_a_few_large_messages_replace_no_small_ones_of_others() -> None:
    queue: FairQueue[bytes] = FairQueue(64, 65_536, len)
    queue.put("zealous", bytes(65_000))
    for _ in range(3):
        queue.put("modest", bytes(400))
    assert [sender for sender, _ in queue.pop_batch(100, 100_000)] == ["modest"] * 3
    assert queue.dropped == 1


def test_a_batch_ends_with_the_message_that_reaches_its_size() -> None:
    queue: FairQueue[bytes] = FairQueue(1_000, 100_000, len)
    for _ in range(64):
        queue.put("a", bytes(1_000))
        queue.put("b", b"1")
    assert len(queue.pop_batch(512, 3_500)) == 4
    assert len(queue.pop_batch(512, 3_500)) == 16 + 4
    assert (queue.waiting, queue.dropped) == (2 * 64 - 24, 0)


def test_a_full_queue_drops_from_the_longest_until_a_sixteenth_is_free() -> None:
    queue: FairQueue[bytes] = FairQueue(32, 10_000, len)
    for number in range(32):
        queue.put("busy" if number % 4 else "quiet", bytes([number]))
    queue.put("new", b"1")
    assert (queue.waiting, queue.dropped) == (30, 3)
    kept = Counter(sender for sender, _ in queue.pop_batch(100, 10_000))
    assert kept == {"busy": 21, "quiet": 8, "new": 1}


frames = st.lists(st.one_of(st.none(), st.sampled_from("abc")), max_size=80)


@given(frames, st.integers(1, 8), st.integers(1, 5))
def test_the_inbox_is_bounded_and_ordered_and_counts_every_loss(
    offers: list[str | None], frames_max: int, batch_max: int
) -> None:
    box, _ = inbox(frames_max, *"abc")
    removed: list[tuple[str, bytes]] = []
    number = 0
    for subject in offers:
        if subject is None:
            _, some = box.pop_batch(batch_max)
            assert len(some) <= batch_max
            removed += some
        else:
            number += 1
            box.offer(subject, b"%03d" % number)
        queues = box._frames._queues.values()
        queued = sum(1 if isinstance(queue, tuple) else len(queue) for queue in queues)
        assert queued == box.waiting <= frames_max
    while box:
        removed += box.pop_batch(batch_max)[1]
    assert len(removed) + box.dropped == number
    for subject in Counter(subject for subject, _ in removed):
        payloads = [payload for name, payload in removed if name == subject]
        assert payloads == sorted(payloads), "frames of a subject keep their order"
