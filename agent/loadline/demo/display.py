"""What a person sees while the demo runs: a live table on a terminal, plain lines elsewhere."""

import importlib.util
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self

from loadline.core.vocabulary.status import AgentStatus, ModelStatus, PoolStatus
from loadline.demo.migration_log import requests

LINES_KEPT = 12
MIGRATIONS_SHOWN = 4
PLAIN_INTERVAL_MS = 5_000


class Display(Protocol):
    """Shows statuses and lines."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def status(self, status: AgentStatus) -> None:
        """The leader's newest status."""
        ...

    def line(self, text: str) -> None:
        """Something that happened."""
        ...


def choose(header: str) -> Display:
    """A live table where there is a terminal and something to draw it with."""
    if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        return LiveDisplay(header)
    return PlainDisplay(header)


class PlainDisplay:
    """A line for everything that changes, and one every 5 s."""

    def __init__(self, header: str, write: Callable[[str], None] = print) -> None:
        self._header = header
        self._write = write
        self._shown_at_ms = 0

    def __enter__(self) -> Self:
        self._write(self._header)
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def status(self, status: AgentStatus) -> None:
        """A line now and then."""
        if status.at_ms - self._shown_at_ms >= PLAIN_INTERVAL_MS:
            self._shown_at_ms = status.at_ms
            for model in status.models:
                parts = [*(_pool_line(pool) for pool in model.pools), *moves(model)[:1]]
                self._write(f"{model.model}: " + "; ".join(parts))

    def line(self, text: str) -> None:
        """At once."""
        self._write(text)


class LiveDisplay:
    """A table that redraws itself, with the latest lines below it."""

    def __init__(self, header: str) -> None:
        from rich.live import Live  # noqa: PLC0415 - an extra

        self._header = header
        self._lines: list[str] = []
        self._status: AgentStatus | None = None
        self._live = Live(self._draw(), refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def status(self, status: AgentStatus) -> None:
        """Redraw."""
        self._status = status
        self._live.update(self._draw())

    def line(self, text: str) -> None:
        """Add to the latest lines."""
        self._lines = [*self._lines, text][-LINES_KEPT:]
        self._live.update(self._draw())

    def _draw(self) -> Any:
        from rich.console import Group  # noqa: PLC0415 - an extra
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        parts: list[Any] = [Text(self._header, style="dim")]
        for model in self._status.models if self._status else ():
            table = Table(title=_title(model), title_justify="left", expand=False)
            table.add_column("pool")
            for name in ("desired", "ready", "starting", "pending", "draining", "KV", "waiting", "running"):
                table.add_column(name, justify="right")
            for pool in model.pools:
                table.add_row(
                    pool.pool,
                    str(pool.desired),
                    Text("#" * pool.ready + f" {pool.ready}", style="green"),
                    *(_or_dot(n) for n in (pool.starting, pool.pending, pool.draining)),
                    f"{pool.kv_usage_ratio:.0%}",
                    str(pool.waiting_requests),
                    str(pool.running_requests),
                )
            parts += [table, Text(traffic(model)), Text(last_decision(model), style="bold")]
            parts += [Text(line) for line in moves(model)]
            parts += [Text(f"  {text}", style="dim") for text in model.hold[:4]]
        parts += [Text(line) for line in self._lines]
        return Group(*parts)


def _title(model: ModelStatus) -> str:
    return f"{model.model} ({model.planner} planner)"


def traffic(model: ModelStatus) -> str:
    """Load and latencies in one line."""
    seen = model.traffic
    if seen.requests_per_s is None:
        return "no traffic yet"
    parts = [f"{seen.requests_per_s:.0f} requests/s"]
    parts += [f"TTFT {seen.ttft_ms:.0f} ms"] if seen.ttft_ms is not None else []
    parts += [f"ITL {seen.itl_ms:.1f} ms"] if seen.itl_ms is not None else []
    return ", ".join(parts)


def last_decision(model: ModelStatus) -> str:
    """What was last decided, how far it got, and why, in one line."""
    decision = model.decision
    if decision is None:
        return "no decision yet"
    targets = ", ".join(f"{pool} {count}" for pool, count in decision.targets.items())
    return f"decision #{decision.sequence} {decision.state}: {targets} ({', '.join(decision.reasons)})"


def moves(model: ModelStatus) -> list[str]:
    """Requests that move between workers and those that have, and a line for some of the moves in flight."""
    status = model.migrations
    if status is None:
        return []
    total = f"migrations: {status.in_flight} in flight, {requests(sum(status.requests.values()))} moved"
    who = "worker does" if status.silent == 1 else "workers do"
    silent = f", {status.silent} {who} not answer" if status.silent else ""
    return [
        total + silent,
        *(
            f"  {one.source} -> {one.destination} ({one.policy}) {one.phase}, {one.moved} of {requests(one.requests)}"
            for one in status.in_flight_commands[:MIGRATIONS_SHOWN]
        ),
    ]


def _or_dot(count: int) -> str:
    return str(count) if count else "."


def _pool_line(pool: PoolStatus) -> str:
    coming = pool.starting + pool.pending
    extra = f" +{coming}" if coming else ""
    leaving = f" -{pool.draining}" if pool.draining else ""
    load = f"KV {pool.kv_usage_ratio:.0%}, {pool.waiting_requests} waiting, {pool.running_requests} running"
    return f"{pool.pool} {pool.ready}{extra}{leaving} of {pool.desired} ({load})"
