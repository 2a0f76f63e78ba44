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
