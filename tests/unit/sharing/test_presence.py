"""Presence of an agent: its key is renewed, and written again when somebody removes it."""

import pytest

from loadline.core.decisions.presence import Presence
from loadline.core.vocabulary.effects import RenewPresence

TTL_S = 10


def present() -> Presence:
    presence = Presence(TTL_S, 1_000)
    assert presence.tick(0) == [RenewPresence(0, TTL_S)]
    presence.lost(5)  # other agents are listed before this one
    presence.renewed(7, 10)
    presence.listed()
    return presence


def test_a_renewal_keeps_the_lease() -> None:
    presence = present()
    assert presence.tick(3_000) == []
    assert presence.tick(3_400) == [RenewPresence(7, TTL_S)]


@pytest.mark.parametrize("during_renewal", [False, True])
def test_a_key_that_somebody_removed_is_written_again_at_once(during_renewal: bool) -> None:  # noqa: FBT001 - a case
    presence = present()
    if during_renewal:
        assert presence.tick(3_400) == [RenewPresence(7, TTL_S)]
    presence.lost(3_401)
    if during_renewal:
        assert presence.tick(3_402) == []
        presence.renewed(7, 3_403)
    assert presence.tick(3_404) == [RenewPresence(0, TTL_S)]
    presence.renewed(8, 3_405)
    assert presence.tick(3_500) == []
    assert presence.next_wake() is not None


def test_a_key_that_is_removed_while_it_is_written_again_is_written_once_more() -> None:
    presence = present()
    presence.lost(3_000)
    assert presence.tick(3_001) == [RenewPresence(0, TTL_S)]
    presence.listed()
    presence.lost(3_002)
    presence.renewed(8, 3_003)
    assert presence.tick(3_004) == [RenewPresence(0, TTL_S)]


def test_a_key_that_a_renewal_has_written_anew_is_kept() -> None:
    presence = present()
    assert presence.tick(3_400) == [RenewPresence(7, TTL_S)]
    presence.lost(3_401)  # its lease had expired, so the renewal takes another
    presence.listed()
    presence.renewed(8, 3_402)
    assert presence.tick(3_403) == []
