"""Composition root of the agent: builds it from a configuration, with its adapters, and runs it."""

import asyncio
import contextlib
import time
from collections import Counter
from pathlib import Path

from loadline import __version__
from loadline.adapters import garbage, logs, signals
from loadline.adapters.child_fitter import ChildFitter
from loadline.adapters.etcd_store import EtcdStore
from loadline.adapters.file_journal import FileJournal
from loadline.adapters.http import HttpServer
from loadline.adapters.metrics import Metrics
from loadline.adapters.nats_bus import NatsBus
from loadline.adapters.notify import Notifier
from loadline.adapters.system_clock import SystemClock
from loadline.config import Config
from loadline.core.controller import Controller
from loadline.core.queries.status import lacks_migration_slots, missing
from loadline.core.state.partition import split
from loadline.core.state.settings import Settings
from loadline.core.vocabulary.events import ChildNotStarted
from loadline.errors import ConfigError, JournalError
from loadline.ports import Clock, DecisionTraces, Journal, SampleFiles
from loadline.runtime.feeds import Feeds, KeyRouter
from loadline.runtime.helpers import Helpers
from loadline.runtime.loop import Runtime
from loadline.runtime.reload import Reloader, Source
from loadline.runtime.service import Service
from loadline.runtime.settings import agent_name, settings
from loadline.runtime.shards import Shards, SharedFeeds
from loadline.runtime.shared_answers import SharedAnswers
from loadline.runtime.slices import Steps, map_in_steps
from loadline.web.access import Access
from loadline.web.event_streams import EventStreams
from loadline.web.live_handlers import LiveHandlers
from loadline.web.live_page import LivePage
from loadline.wire.keys import Keys

__all__ = ["Agent", "run", "settings"]

_log = logs.bounded("agent")
_bounded = logs.bounded("border")

QUERIES_READ_PAUSE_S = 0.01
"""Pause after each read of queries: a read of 650 takes 1.4 ms, so that a flood of them takes an eighth of the time."""
MISSING_MAX = 64
"""Missing planner inputs listed by a probe."""
TURN_AGE_MAX_S = 10.0
"""Age of the last turn above which the loop counts as stuck; every planner runs at least once per sampling interval."""


class Agent:
    """One agent process: the runtime and its adapters.

    Args:
        config: A validated configuration.
        source: Place from which the configuration is reloaded; None: it is not.
    """

    def __init__(self, config: Config, source: Source | None = None) -> None:
        self._config = config
        self._frames_refused: Counter[str] = Counter()
        self._notifier = Notifier()
        self._last_turn_s = time.monotonic()
        self._watchdog_fed_s = 0.0
        self._was_ready = False
        self._bus = NatsBus(config.nats, name=f"loadline {agent_name(config)}", on_oversized=self._refuse_oversized)
        self._queries = NatsBus(
            config.nats,
            name=f"loadline {agent_name(config)} queries",
            on_oversized=self._refuse_oversized,
            read_pause_s=QUERIES_READ_PAUSE_S,
        )
        keys = Keys(config.agent.namespace)
        self._store = EtcdStore(config.etcd, keys.value_bytes_max, keys.writer)
        self._fitter = ChildFitter(on_unstarted=lambda text: self.shards.put(ChildNotStarted(text)))
        self._traces = _traces(config)
        self._tensorboard = _tensorboard(config)
        current = settings(config)
        self._journals: list[Journal] = []
        self.shards = self._shards(current, keys)
        self.runtime = self.shards.first
        self._reloader = (
            None if source is None else Reloader(source, config, current, self.shards.put, self.shards.check)
        )
        self.service = Service(self.shards, self._queries, __version__)
        self._metrics = Metrics(self._counters, __version__, config.http.compatible_metrics)
        self._scrapes: SharedAnswers[bytes] = SharedAnswers()
        self._access = Access(config.http.host, config.http.token_file)
        self._page = LivePage(lambda: self.shards.models, lambda: self.shards.states, EventStreams())
        self.http = HttpServer(
            config.http.host,
            config.http.port,
            metrics=lambda: self._scrapes.get_in_slices("", self._render_metrics),
            healthy=self._health_problems,
            ready=self._readiness_problems,
            missing=self._missing_inputs,
            routes=LiveHandlers(self._page, self._access, self.service.set_paused).routes(),
        )

    def _shards(self, whole: Settings, keys: Keys) -> Shards:
        """Return the runtime of each shard, each with a journal of its own."""
        parts = split(whole)
        clock, router = SystemClock(), KeyRouter(keys, whole)
        feeds = Feeds(self._bus, self._store, router, len(parts))
        shared = len(parts) > 1
        runtimes = [
            self._runtime(part, clock, _journal(self._config, part.scope if shared else "", len(parts)), feeds, shard)
            for shard, part in enumerate(parts)
        ]
        return Shards(runtimes, SharedFeeds(feeds, router) if shared else None)

    def _runtime(self, part: Settings, clock: Clock, journal: Journal | None, feeds: Feeds, shard: int) -> Runtime:
        config, shared = self._config, bool(part.sharing.layout)
        if journal is not None:
            self._journals.append(journal)
        return Runtime(
            controller=Controller(part),
            clock=clock,
            bus=self._bus,
            store=self._store,
            fitter=self._fitter,
            journal=journal,
            root=config.agent.root,
            namespace=config.agent.namespace,
            knobs=config.runtime,
            frame_bytes_max=config.nats.frame_bytes_max,
            version=__version__,
            on_turn=self._on_turn,
            on_rejected=lambda rejected: self._count_refused(rejected.reason, rejected.subject, rejected.detail),
            traces=self._traces,
            follow=feeds.follow_of(shard) if shared else None,
            connect=feeds.connect if shared else None,
        )

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT, or until a task fails without which no operator can reach the agent."""
        signals.install_handlers(self._stop, None if self._reloader is None else self._reloader.request)
        if self._config.http.port:
            await self._start_http()
        interval_ms = self._config.runtime.status_interval_ms
        helpers = Helpers(self._stop)
        # Without these two no operator could ask, pause or drain.
        helpers.start("queries", self._queries.connect(lambda _connected: None), vital=True)
        helpers.start("service", self.service.serve(), vital=True)
        helpers.start("status", self.service.publish_status(interval_ms, self._page.offer))
        helpers.start("page", self._page.run())
        helpers.start("garbage", garbage.collect_periodically())
        if self._tensorboard is not None:
            helpers.start(
                "tensorboard", self.service.write_samples(self._config.tensorboard.interval_ms, self._tensorboard)
            )
        if self._reloader is not None:
            helpers.start("reload", self._reloader.run())
        _log.info("started", agent=agent_name(self._config), version=__version__, http_port=self.http.port)
        try:
            await self.shards.run()
            helpers.check()
        finally:
            await helpers.cancel()
            self._page.streams.close()
            await self.http.close()
            await self._queries.close()
            await self._bus.close()
            await self._store.close()
            await self._fitter.close()
            if self._traces is not None:
                await self._traces.close()
            _log.info("stopped", turns=self.shards.turns, frames=self.shards.frames)

    async def _start_http(self) -> None:
        knobs = self._config.http
        self._access.check()
        try:
            await self.http.start()
        except OSError as error:
            problem = f"cannot listen on {knobs.host}:{knobs.port} ({error.strerror})"
            raise ConfigError("http.port", problem, "Choose another port, or 0 for none.") from error

    def _render_metrics(self) -> Steps[bytes]:
        status = yield from self.service.status()
        families = yield from map_in_steps(bytes, self._metrics.render(status))
        return b"".join(families)

    def _stop(self) -> None:
        self._notifier.stopping()
        self.shards.stop()

    def _on_turn(self, seconds: float) -> None:
        """Record a completed turn, and feed the watchdog: only a completed turn does."""
        self._metrics.observe_turn(seconds)
        self._last_turn_s = now = time.monotonic()
        interval_s = self._notifier.watchdog_interval_s
        if interval_s and now - self._watchdog_fed_s >= interval_s / 2:
            self._watchdog_fed_s = now
            self._notifier.alive()
        if not self._was_ready and not self._readiness_problems():
            self._was_ready = True
            self._notifier.ready()
            _log.info("ready")

    def _refuse_oversized(self, subject: str) -> None:
        self._count_refused("oversized", subject, "larger than frame_bytes_max")

    def _count_refused(self, reason: str, subject: str, detail: str) -> None:
        self._frames_refused[reason] += 1
        _bounded.warning("refused", reason=reason, subject=subject[:256], detail=detail)

    def _health_problems(self) -> list[str]:
        age_s = time.monotonic() - self._last_turn_s
        return [f"no turn completed for {age_s:.0f} s"] if age_s > TURN_AGE_MAX_S else []

    def _readiness_problems(self) -> list[str]:
        states = [one.controller.state for one in self.shards.runtimes]
        problems = self._health_problems()
        if not (self._bus.connected if self.shards.shared else states[0].bus_connected):
            problems.append(f"NATS is not connected: {', '.join(self._config.nats.servers)}")
        if not states[0].store_connected:
            problems.append(f"etcd is not connected: {', '.join(self._config.etcd.endpoints)}")
        elif not all(state.registry_read for state in states):
            problems.append("the registry has not been read yet")
        return problems

    def _missing_inputs(self) -> list[str]:
        now = self.runtime.clock.now_ms()
        found: list[str] = []
        for controller in (one.controller for one in self.shards.shown):
            state, core_settings = controller.state, controller.settings
            for knobs in core_settings.models:
                found += [] if core_settings.only_migration else missing(state.fleet.models[knobs.name], knobs, now)
                found += lacks_migration_slots(state, knobs)
        return found[:MISSING_MAX]

    def _counters(self) -> dict[str, int]:
        shards = self.shards
        refused = {f"refused_{reason}": count for reason, count in self._frames_refused.items()}
        return {
            "turns": shards.turns,
            "frames": shards.frames,
            "frames_dropped": shards.frames_dropped,
            "slow_consumer_drops": self._bus.slow_consumer_drops + self._queries.slow_consumer_drops,
            "requests_dropped": self._bus.requests_dropped + self._queries.requests_dropped,
            "replies_dropped": self._bus.replies_dropped + self._queries.replies_dropped,
            "journal_lost": sum(one.lost for one in self._journals),
            **({} if self._tensorboard is None else {"tensorboard_lost": self._tensorboard.lost}),
            **refused,
        }


def _journal(config: Config, folder: str, journals: int) -> Journal | None:
    """Return the journal in a folder of the configured one, where ``journals`` share its size."""
    knobs = config.journal
    if not knobs.directory:
        return None
    bytes_max = knobs.bytes_max // journals
    # An eighth at most, since the oldest segment is deleted as a whole: a journal of one segment would lose all of it.
    segment_bytes_max = min(knobs.segment_bytes_max, max(1, bytes_max // 8))
    try:
        return FileJournal(Path(knobs.directory) / folder, segment_bytes_max, bytes_max)
    except JournalError as error:
        _log.error("no_journal", detail=str(error))
        return None


def _traces(config: Config) -> DecisionTraces | None:
    if not config.otel.traces:
        return None
    from loadline.adapters.otel_traces import OtelTraces  # noqa: PLC0415 - an extra

    return OtelTraces(agent_name(config), __version__)


def _tensorboard(config: Config) -> SampleFiles | None:
    if not config.tensorboard.log_dir:
        return None
    from loadline.adapters.tensorboard import TensorboardFiles  # noqa: PLC0415 - an extra

    gpus = {(model.name, pool.name): pool.gpus_per_worker for model in config.models for pool in model.pools}
    return TensorboardFiles(Path(config.tensorboard.log_dir), gpus)


def run(config: Config, source: Source | None = None) -> None:
    """Run an agent until SIGTERM or SIGINT.

    Raises:
        LoadlineError: The agent cannot start; the text gives the reason and the remedy.
        OSError: The HTTP address is taken.
    """
    logs.configure(config.agent.log_format, config.agent.log_level)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(config, source))


async def _run(config: Config, source: Source | None) -> None:
    agent = Agent(config, source)
    garbage.configure()
    await agent.run()
