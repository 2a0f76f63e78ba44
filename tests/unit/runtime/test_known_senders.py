"""Senders that the inbox counts as known: the workers that the core has in its fleet, after each turn."""

from collections.abc import Coroutine
from typing import Any, cast

from loadline.core.fleet.pool import DRAINS_MAX
from loadline.core.vocabulary.effects import AnyEffect
from loadline.core.vocabulary.events import (
    AnyEvent,
    DrainRequested,
    RegistryRead,
    WorkerDeregistered,
    WorkerRegistered,
)
from loadline.core.vocabulary.samples import RegisteredWorker, WorkerRecord
from loadline.runtime.inbox import Inbox
from loadline.runtime.turns import Turns
from loadline.wire.keys import Keys
from loadline.wire.subjects import Subjects
from tests.support.controller_world import booted

SUBJECTS = Subjects("loadline")
QUOTA = 2 * 8 + DRAINS_MAX
NOW = booted().now


def turns() -> Turns:
    """Return the turns of a leader whose effects are not performed."""
    world, unused = booted(), cast("Any", None)

    def drop(_effect: AnyEffect, coroutine: Coroutine[object, object, None]) -> None:
        coroutine.close()

    return Turns(
        controller=world.controller,
        bus=unused,
        store=unused,
        fitter=unused,
        journal=None,
        subjects=SUBJECTS,
        keys=Keys("default"),
        inbox=Inbox(1_024, lambda: None, SUBJECTS),
        spawn=drop,
        log=unused,
        batch_max=512,
        frame_bytes_max=262_144,
        version="",
        on_rejected=lambda _rejected: None,
    )


def registered(number: int) -> RegisteredWorker:
    return RegisteredWorker(WorkerRecord("m", "decode", f"new-{number}", "decode", 1), 5)


def turn(agent: Turns, *events: AnyEvent, now: int = NOW) -> None:
    for event in events:
        agent.inbox.put(event)
    agent.turn(now)


def known(agent: Turns, number: int) -> bool:
    """Return True if the load of a worker would be queued as that of a known sender."""
    before = agent.inbox.waiting
    agent.inbox.offer(SUBJECTS.load("m", "decode", f"new-{number}"), b"{}")
    found = agent.inbox.waiting > before
    agent.inbox.pop_batch(512)
    return found


def test_workers_that_their_pool_refuses_stay_unknown() -> None:
    agent = turns()
    turn(agent, RegistryRead([]))
    turn(agent, *(WorkerRegistered(registered(number)) for number in range(QUOTA + 1)))
    assert [number for number in range(QUOTA + 1) if known(agent, number)] == list(range(QUOTA))
    turn(agent, RegistryRead([registered(number) for number in range(1, QUOTA + 2)]))
    assert [number for number in range(QUOTA + 2) if known(agent, number)] == list(range(1, QUOTA + 1))


def test_a_worker_that_its_pool_takes_later_is_known() -> None:
    agent = turns()
    turn(agent, RegistryRead([registered(number) for number in range(QUOTA + 2)]))
    turn(agent, WorkerDeregistered("m", "decode", "new-0"))
    turn(agent, now=NOW + 10_000)
    assert [known(agent, number) for number in (0, QUOTA, QUOTA + 1)] == [False, True, False]


def test_a_worker_that_drains_without_a_key_stays_known() -> None:
    agent = turns()
    turn(agent, WorkerRegistered(registered(0)), WorkerRegistered(registered(1)))
    turn(agent, DrainRequested("m", "decode", "new-0", "operator"))
    turn(agent, WorkerDeregistered("m", "decode", "new-0"), WorkerDeregistered("m", "decode", "new-1"))
    assert (known(agent, 0), known(agent, 1)) == (True, False)
