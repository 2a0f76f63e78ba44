"""What happens to the scaler: its moods, and the way to it."""

from collections.abc import Callable
from functools import partial
from typing import Final

from loadline.sim.chaos.moods import Mood
from loadline.sim.chaos.nemesis import Nemesis, Undo
from loadline.sim.chaos.plan import Strike

_OBEDIENT: Final[frozenset[Mood]] = frozenset({"good", "slow", "mute", "repeats"})


def _feels(mood: Mood) -> Callable[[Nemesis, Strike], Undo]:
    """It has this mood for a while."""

    def strike(nemesis: Nemesis, _strike: Strike) -> Undo:
        world = nemesis.world

        def feel(mood: Mood) -> None:
            world.moody.mood = mood
            world.scaler.obedient = mood in _OBEDIENT

        feel(mood)
        return partial(feel, "good")

    return strike


scaler_slow = _feels("slow")
"""It hears of decisions late."""
scaler_mute = _feels("mute")
"""It answers nothing."""
scaler_refuses = _feels("refuses")
"""It refuses every decision."""
scaler_lies = _feels("lies")
"""It says that all is done, and does nothing."""
scaler_contradicts = _feels("contradicts")
"""It says that it is done, with other counts."""
scaler_repeats = _feels("repeats")
"""It says what it said before again, with everything that it says."""


def scaler_off_bus(nemesis: Nemesis, strike: Strike) -> Undo:
    """It is cut off."""
    del strike
    nemesis.world.moody.set_cut(cut=True)
    return partial(nemesis.world.moody.set_cut, cut=False)
