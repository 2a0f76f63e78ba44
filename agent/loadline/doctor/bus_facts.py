"""Facts that NATS gives: server, permissions of the login, statuses of the agents and clocks of workers."""

import asyncio
import time
from collections import deque
from typing import Final

from msgspec import Struct

from loadline.adapters.nats_probe import NatsProbe, open_probe
from loadline.core.vocabulary.status import AgentStatus
from loadline.doctor import agent_role
from loadline.doctor.deployment import Deployment
from loadline.errors import BusUnavailable
from loadline.runtime.status_parts import join_status
from loadline.wire.codec import Rejected, decode_as, encode
from loadline.wire.messages import LoadReport, StatusRequest
from loadline.wire.subjects import Subjects

_LISTEN_S: Final = 2.1
"""Time for two reports and statuses: workers report every second by default, and standbys answer after 0.2 s."""
_JITTER_MS: Final = 500
"""By how much the time in a report and that of its arrival may differ more, or less, than in one before."""
_WORKERS_MAX: Final = 1_000
_PARTS_MAX: Final = 64
_NAME: Final = "loadline doctor"


class AgentAnswer(Struct, frozen=True):
    """Status of an agent."""

    status: AgentStatus
    clock_offset_ms: int
    """Its clock minus that of this host; the answer takes a few ms."""


class BusFacts(Struct, frozen=True):
    """Facts that NATS gives."""

    problem: str = ""
    """Reason why it is not connected; empty: it is."""
    server: str = ""
    version: str = ""
    payload_bytes_max: int = 0
    denied_subscriptions: tuple[str, ...] = ()
    denied_publishes: tuple[str, ...] = ()
    replies_denied: bool = False
    status_denied: bool = False
    agents: tuple[AgentAnswer, ...] = ()
    worker_clocks_ms: dict[str, int] = {}
    """Clocks of workers that reported, minus that of this host."""
    figure_ages_ms: dict[str, int] = {}
    """Ages of the figures of other workers: the time in their reports has passed, and does not advance like a clock."""
    single_lags_ms: dict[str, int] = {}
    """Age of the time in the only report of other workers: of a clock that is behind, or of figures."""


class ReportTimes:
    """Times in the reports of workers: those of their clocks, or of the last reading of a source.

    Of 10,000 workers, which send as many reports in a second, the first 1,000 are enough.
    """

    def __init__(self) -> None:
        self.clocks_ms: dict[str, int] = {}
        """Clocks of workers, minus that of this host; the name of a worker is that in its key."""
        self.ages_ms: dict[str, int] = {}
        """Ages of the figures of the other workers."""
        self.single_lags_ms: dict[str, int] = {}
        """Age of the time in the only report of other workers."""
        self._subjects: set[str] = set()
        self._last: dict[str, deque[tuple[int, int]]] = {}
        self._proven: set[str] = set()

    def read(self, subject: str, data: bytes, now_ms: int, monotonic_ms: int) -> None:
        """Read a report that arrived at a Unix and a monotonic time."""
        if subject not in self._subjects and len(self._subjects) >= _WORKERS_MAX:
            return
        self._subjects.add(subject)
        report = decode_as(LoadReport, data)
        if isinstance(report, LoadReport):
            worker = f"{report.model}/{report.pool}/{report.worker}"
            self.add(worker, report.samples[-1].timestamp_ms, now_ms, monotonic_ms)

    def add(self, worker: str, at_ms: int, now_ms: int, monotonic_ms: int) -> None:
        """Add the time in a report, in Unix ms, and the Unix and monotonic time of its arrival.

        A source repeats the time of a reading until the next one, which is 15 s later with Prometheus and 30 s with an
        idle engine of Llumnix. A time that once advances with that of this host is the clock of the worker. Two reports
        before are compared, since one may be late, and by monotonic time, since the clock of this host may be set.
        """
        before = self._last.setdefault(worker, deque(maxlen=2))
        if any(_advances(at_ms - last_at_ms, monotonic_ms - last_ms) for last_at_ms, last_ms in before):
            self._proven.add(worker)
        for found in (self.clocks_ms, self.ages_ms, self.single_lags_ms):
            found.pop(worker, None)
        if at_ms >= now_ms or worker in self._proven:
            self.clocks_ms[worker] = at_ms - now_ms
        elif before:
            self.ages_ms[worker] = now_ms - at_ms
        else:
            self.single_lags_ms[worker] = now_ms - at_ms
        before.append((at_ms, monotonic_ms))


def _advances(advance_ms: int, passed_ms: int) -> bool:
    return advance_ms > 0 and abs(advance_ms - passed_ms) <= _JITTER_MS


async def gather(deployment: Deployment) -> BusFacts:
    """Gather the facts; takes some seconds when NATS is connected.

    Raises:
        ConfigError: A file of the login cannot be used.
    """
    try:
        async with open_probe(deployment.nats, _NAME) as probe:
            return await _examine(probe, deployment)
    except BusUnavailable as error:
        return BusFacts(problem=str(error))


async def _examine(probe: NatsProbe, deployment: Deployment) -> BusFacts:
    replies, status = agent_role.reply_subject(deployment), agent_role.status_subject(deployment)
    subscriptions = await probe.denied_subscriptions([*agent_role.subscriptions(deployment), replies])
    publishes = await probe.denied_publishes(agent_role.publishes(deployment))
    loads = Subjects(deployment.root).all_of("load")
    times = ReportTimes()

    def read_time(subject: str, data: bytes) -> None:
        times.read(subject, data, _now_ms(), time.monotonic_ns() // 1_000_000)

    if loads not in subscriptions:
        await probe.listen(loads, read_time)
    agents = [] if replies in subscriptions else await _agents(probe, status)
    return BusFacts(
        server=probe.server,
        version=probe.version,
        payload_bytes_max=probe.payload_bytes_max,
        denied_subscriptions=tuple(one for one in subscriptions if one != replies),
        denied_publishes=tuple(publishes),
        replies_denied=replies in subscriptions,
        status_denied=probe.was_denied(status),
        agents=tuple(agents),
        worker_clocks_ms=times.clocks_ms,
        figure_ages_ms=times.ages_ms,
        single_lags_ms=times.single_lags_ms,
    )


async def _agents(probe: NatsProbe, subject: str) -> list[AgentAnswer]:
    """Ask all agents for their status."""
    first = await _statuses(probe, subject, 0)
    parts = {answer.status.agent: [answer.status] for answer in first}
    for part in range(1, min(_PARTS_MAX, max((answer.status.parts for answer in first), default=1))):
        for answer in await _statuses(probe, subject, part):
            if answer.status.part == part:
                parts.get(answer.status.agent, []).append(answer.status)
    offsets = {answer.status.agent: answer.clock_offset_ms for answer in first}
    return [AgentAnswer(join_status(found), offsets[name]) for name, found in sorted(parts.items())]


async def _statuses(probe: NatsProbe, subject: str, part: int) -> list[AgentAnswer]:
    answers: list[AgentAnswer] = []

    def on_reply(_subject: str, data: bytes) -> None:
        status = decode_as(AgentStatus, data)
        if not isinstance(status, Rejected):
            answers.append(AgentAnswer(status, status.at_ms - _now_ms()))

    await probe.ask_all(subject, encode(StatusRequest(part)), on_reply)
    await asyncio.sleep(_LISTEN_S)
    return answers


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
