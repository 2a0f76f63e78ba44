"""The page of a running agent: computed once per status, and encoded once for all clients."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from loadline.adapters.logs import bounded
from loadline.core.state.agent_state import AgentState
from loadline.core.vocabulary.status import AgentStatus, ModelStatus
from loadline.runtime.slices import Steps, map_in_steps, run_in_slices
from loadline.web.decision_log import DecisionLog
from loadline.web.event_streams import EventStreams
from loadline.web.history import FleetHistory
from loadline.web.page_data import FleetRow, WorkerCell, fleet_page, fleet_row, model_page, worker_cell

CELLS_PER_STEP: Final = 64
"""Workers between two pauses: 64 cells take 0.1 ms."""

_log = bounded("page")
_encode: Final = msgspec.json.Encoder().encode


class LivePage:
    """Page data of a running agent.

    Args:
        models: Returns the number of models, which share the bounds of history and decisions. When a reload adds many,
            each keeps less: the oldest points and decisions are lost.
        states: Returns the states of the cores that the agent reports, for explanations.
        streams: Clients that follow the page.
    """

    def __init__(
        self, models: Callable[[], int], states: Callable[[], Sequence[AgentState]], streams: EventStreams
    ) -> None:
        self.streams = streams
        self._models = models
        self._states = states
        self._status: AgentStatus | None = None
        self._history = FleetHistory(models())
        self._decisions = DecisionLog(models())
        self._fleet = b""
        self._frames: dict[str, bytes] = {}
        self._offered: asyncio.Queue[AgentStatus] = asyncio.Queue(maxsize=1)

    @property
    def status(self) -> AgentStatus | None:
        """Newest status; None before the first."""
        return self._status

    def offer(self, status: AgentStatus) -> None:
        """Replace the status that ``run`` takes next, so that whoever publishes statuses never waits for the page."""
        if self._offered.full():
            self._offered.get_nowait()
        self._offered.put_nowait(status)

    async def run(self) -> None:
        """Take offered statuses until cancelled; one that cannot be shown is logged and left out."""
        while True:
            status = await self._offered.get()
            try:
                await self.update(status)
            except Exception as error:  # noqa: BLE001 - a defect of one status must not end the page
                _log.error("page_not_updated", detail=repr(error))

    async def update(self, status: AgentStatus) -> None:
        """Take a new status, in slices, and send it to the clients."""
        await run_in_slices(self._take(status))
        for model in self.streams.watched():
            self.streams.send(model, await self.frame(model))

    async def frame(self, model: str) -> bytes:
        """Return the events of a model's page: the list of all models, and the model if there is one."""
        if self._status is None:
            return b""
        found = self._frames.get(model)
        if found is None:
            return (await run_in_slices(self._frame(self._status, model)))[0]
        return found

    def history(self, model: str) -> bytes:
        """Return the history of a model as JSON."""
        return _encode(self._history.page(model))

    def decisions(self, model: str) -> bytes:
        """Return the decisions of a model as JSON."""
        return _encode(self._decisions.pages(model))

    def _take(self, status: AgentStatus) -> Steps[None]:
        self._history.divide_among(self._models())
        self._decisions.divide_among(self._models())
        yield from map_in_steps(lambda model: self._record(model, status.at_ms), status.models)
        for state in self._states():
            self._decisions.add(state.explanations.entries)
        names = {model.model for model in status.models}
        self._history.forget_others(names)
        self._decisions.forget_others(names)
        self._status, self._fleet = status, b""
        self._frames.clear()

    def _record(self, model: ModelStatus, at_ms: int) -> None:
        self._history.record(model, at_ms)
        self._decisions.update(model.model, model.decision)

    def _frame(self, status: AgentStatus, name: str) -> Steps[bytes]:
        if not self._fleet:
            rows: Sequence[FleetRow] = yield from map_in_steps(fleet_row, status.models)
            self._fleet = encode_event("fleet", _encode(fleet_page(status, rows)), status.at_ms)
        frame = self._fleet
        for model in status.models:
            if model.model == name:
                frame += yield from self._model_event(model, status.at_ms)
        if status is self._status:
            self._frames[name] = frame
        return frame

    def _model_event(self, model: ModelStatus, at_ms: int) -> Steps[bytes]:
        workers: dict[str, list[WorkerCell]] = {}
        fleets = (state.fleet.models for state in self._states())
        known = next((models[model.model] for models in fleets if model.model in models), None)
        for name, pool in known.pools.items() if known is not None else ():
            cells = workers[name] = []
            listed = list(pool.workers.values())  # all of them, while a status lists a few
            for first in range(0, len(listed), CELLS_PER_STEP):
                cells += [worker_cell(one.status(at_ms)) for one in listed[first : first + CELLS_PER_STEP]]
                yield
        hold = None if known is None else known.hold
        revision = self._decisions.revision(model.model)
        interval_ms = self._history.interval_ms
        page = model_page(model, workers, hold, at_ms=at_ms, interval_ms=interval_ms, decisions_revision=revision)
        return encode_event("model", _encode(page), at_ms)


def encode_event(kind: str, data: bytes, at_ms: int) -> bytes:
    """Encode a server-sent event whose data is JSON, which contains no line break."""
    return b"event: %b\nid: %d\ndata: %b\n\n" % (kind.encode(), at_ms, data)
