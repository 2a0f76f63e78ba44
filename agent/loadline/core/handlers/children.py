"""Handler of the child processes that compute forecasts and exact allocations."""

from loadline.core.handlers.turn import Turn
from loadline.core.vocabulary.effects import Effect, RaiseAlarm
from loadline.core.vocabulary.events import ChildNotStarted


def child_not_started(_turn: Turn, event: ChildNotStarted) -> list[Effect]:
    """Raise an alarm, since every forecast is then the last value, or every allocation the greedy one."""
    return [RaiseAlarm("child_not_started", "", event.detail)]
