"""Answers to queries, encoded once for all who ask at about the same time."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from loadline.runtime.slices import Steps, run_in_slices

SHARED_S: Final = 0.2
"""Age up to which an answer is given again."""
LOAD_RATIO: Final = 0.1
"""Largest part of the time that answers may take."""
ANSWERS_MAX: Final = 16

T = TypeVar("T")


class SharedAnswers(Generic[T]):
    """Answers by request. Computing them takes at most ``LOAD_RATIO`` of the loop's time: later ones wait."""

    def __init__(self) -> None:
        self._answers: OrderedDict[object, tuple[float, T]] = OrderedDict()
        self._idle_until_s = 0.0
        self._computing = asyncio.Lock()

    async def get(self, request: object, compute: Callable[[], T]) -> T:
        """Return the answer to a request: that of the last 200 ms, or a new one as soon as its turn comes."""

        def single_step() -> Steps[T]:
            yield
            return compute()

        return await self.get_in_slices(request, single_step)

    async def get_in_slices(self, request: object, compute: Callable[[], Steps[T]]) -> T:
        """Return the answer to a request, as ``get`` does, but compute it in slices."""
        loop = asyncio.get_running_loop()
        async with self._computing:
            found = self._answers.get(request)
            if found is not None and loop.time() - found[0] < SHARED_S:
                return found[1]
            await asyncio.sleep(max(0.0, self._idle_until_s - loop.time()))
            answer, busy_s = await run_in_slices(compute())
            ended_s = loop.time()
            self._idle_until_s = ended_s + busy_s * (1.0 / LOAD_RATIO - 1.0)
            self._answers[request] = (ended_s, answer)
            self._answers.move_to_end(request)
            if len(self._answers) > ANSWERS_MAX:
                self._answers.popitem(last=False)
            return answer
