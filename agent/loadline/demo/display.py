"""Displays of the running demo: a live table on a terminal, plain lines elsewhere."""

import importlib.util
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self

from loadline.core.vocabulary.status import AgentStatus, ModelStatus, PoolStatus
from loadline.demo.migration_log import requests
from loadline.formatting import usage

LINES_SHOWN_MAX = 12
MIGRATIONS_SHOWN = 4
BAR_MAX = 16
"""Longest bar of ready workers, so that the table fits 80 columns."""
PLAIN_INTERVAL_MS = 5_000


class Display(Protocol):
    """Display of statuses and lines."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def status(self, status: AgentStatus) -> None:
        """Show the newest status of the leader."""
        ...

    def line(self, text: str) -> None:
        """Show a line about an event."""
        ...


def make_display(header: str) -> Display:
    """Create a live table if stdout is a terminal and Rich is installed, otherwise plain lines."""
    if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        return LiveDisplay(header)
    return PlainDisplay(header)


class PlainDisplay:
    """Lines for events, and one per model every 5 s."""

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
        """Print a line per model, at most every 5 s."""
        if status.at_ms - self._shown_at_ms >= PLAIN_INTERVAL_MS:
            self._shown_at_ms = status.at_ms
            for model in status.models:
                parts = [*(_pool_line(pool) for pool in model.pools), *migration_lines(model)[:1]]
                self._write(f"{model.model}: " + "; ".join(parts))

    def line(self, text: str) -> None:
        """Print a line at once."""
        self._write(text)


class LiveDisplay:
    """Table that is redrawn in place, with the latest lines below it."""

    def __init__(self, header: str) -> None:
        from rich.live import Live  # noqa: PLC0415 - takes 0.1 s and 4 MB, and only a terminal needs it

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
        """Redraw the table."""
        self._status = status
        self._live.update(self._draw())

    def line(self, text: str) -> None:
        """Add a line to the latest ones."""
        self._lines = [*self._lines, text][-LINES_SHOWN_MAX:]
        self._live.update(self._draw())

    def _draw(self) -> Any:
        from rich.console import Group  # noqa: PLC0415 - see above
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        parts: list[Any] = [Text(self._header, style="dim")]
        for model in self._status.models if self._status else ():
            table = Table(title=_title(model), title_justify="left", expand=False)
            table.add_column("pool")
            for name in ("want", "ready", "start", "drain", "KV", "wait", "run"):
                table.add_column(name, justify="right", no_wrap=True)
            for pool in model.pools:
                table.add_row(
                    pool.pool,
                    str(pool.desired),
                    Text("#" * min(pool.ready, BAR_MAX) + f" {pool.ready}", style="green"),
                    *(_or_dot(n) for n in (pool.starting + pool.pending, pool.draining)),
                    usage(pool.kv_usage),
                    str(pool.waiting_requests),
                    str(pool.running_requests),
                )
            parts += [table, Text(traffic_line(model)), Text(decision_line(model), style="bold")]
            parts += [Text(line) for line in migration_lines(model)]
            parts += [Text(f"  {text}", style="dim") for text in model.hold[:4]]
        parts += [Text(line) for line in self._lines]
        return Group(*parts)


def _title(model: ModelStatus) -> str:
    return f"{model.model} ({model.planner} planner)"


def traffic_line(model: ModelStatus) -> str:
    """Format load and latencies."""
    traffic = model.traffic
    if traffic.requests_per_s is None:
        return "no traffic yet"
    parts = [f"{traffic.requests_per_s:.0f} requests/s"]
    parts += [f"TTFT {traffic.ttft_ms:.0f} ms"] if traffic.ttft_ms is not None else []
    parts += [f"ITL {traffic.itl_ms:.1f} ms"] if traffic.itl_ms is not None else []
    return ", ".join(parts)


def decision_line(model: ModelStatus) -> str:
    """Format the last decision, its state and its reasons."""
    decision = model.decision
    if decision is None:
        return "no decision yet"
    targets = ", ".join(f"{pool} {count}" for pool, count in decision.targets.items())
    return f"decision #{decision.sequence} {decision.state}: {targets} ({', '.join(decision.reasons)})"


def migration_lines(model: ModelStatus) -> list[str]:
    """Format the number of migrations, and one line for some of those in flight."""
    status = model.migrations
    if status is None:
        return []
    total = f"migrations: {status.in_flight} in flight, {requests(sum(status.requests.values()))} migrated"
    workers = "worker does" if status.silent == 1 else "workers do"
    silent = f", {status.silent} {workers} not answer" if status.silent else ""
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
    pending = pool.starting + pool.pending
    added = f" +{pending}" if pending else ""
    removed = f" -{pool.draining}" if pool.draining else ""
    load = f"KV {usage(pool.kv_usage)}, {pool.waiting_requests} waiting, {pool.running_requests} running"
    return f"{pool.pool} {pool.ready}{added}{removed} of {pool.desired} ({load})"
