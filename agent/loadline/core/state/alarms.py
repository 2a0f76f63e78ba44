"""Alarms of the last hour, for the status."""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct, field

from loadline.core.vocabulary.alarm_actions import ALARM_ACTIONS
from loadline.core.vocabulary.effects import RaiseAlarm
from loadline.core.vocabulary.status import RaisedAlarm

RECENT_MS: Final = 3_600_000
"""Time for which an alarm is recent."""
ALARMS_MAX: Final = 32
"""Kinds and models whose newest alarm is kept."""
TEXT_CHARS_MAX: Final = 400
"""Longest text, since some name each of many workers; the log has all of it."""


class Alarms(Struct):
    """The newest alarm of each kind and model."""

    newest: list[RaisedAlarm] = field(default_factory=list)
    """Oldest first."""

    def add(self, raised: RaiseAlarm, now: int) -> None:
        """Add an alarm that was raised at ``now`` (ms)."""
        before = next((one for one in self.newest if (one.kind, one.model) == (raised.kind, raised.model)), None)
        count, others = 1, self.newest
        if before is not None:
            count += before.count if now - before.at_ms <= RECENT_MS else 0
            others = [one for one in others if one is not before]
        text = raised.text
        if len(text) > TEXT_CHARS_MAX:
            text = f"{text[: TEXT_CHARS_MAX - 1]}…"
        action = ALARM_ACTIONS.get(raised.kind, "")
        self.newest = [*others[1 - ALARMS_MAX :], RaisedAlarm(raised.kind, raised.model, text, now, count, action)]

    def is_recent(self, kind: str, now: int) -> bool:
        """Return True if an alarm of a kind was raised in the last hour."""
        return any(one.kind == kind for one in self.recent(now))

    def recent(self, now: int) -> tuple[RaisedAlarm, ...]:
        """Return the alarms of the last hour, newest first."""
        return tuple(one for one in reversed(self.newest) if now - one.at_ms <= RECENT_MS)


def newest_alarms(alarms: Iterable[RaisedAlarm]) -> tuple[RaisedAlarm, ...]:
    """Return as many alarms of several agents or shards as one keeps, newest first.

    Of equal ones only the newest is returned: all of 64 shards report that etcd has lost data, which would leave no
    room for anything else.
    """
    newest = {(one.kind, one.model, one.text): one for one in sorted(alarms, key=lambda one: one.at_ms)}
    return tuple(sorted(newest.values(), key=lambda one: -one.at_ms)[:ALARMS_MAX])
