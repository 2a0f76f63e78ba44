"""Command ``top``: a live view of the fleet in the terminal."""

import argparse
import os
import sys

from loadline.adapters import logs
from loadline.adapters.nats_bus import NatsBus
from loadline.cli import event_loop
from loadline.cli.explain_output import format_explanation, format_policy_report
from loadline.cli.extras import require_package
from loadline.cli.remote import Target, ask, ask_status, connected, operator, target_of
from loadline.core.vocabulary.status import AgentStatus
from loadline.errors import ConfigError, LoadlineError
from loadline.wire.codec import encode
from loadline.wire.messages import ExplainReply, ExplainRequest, OperatorReply, PauseCommand


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``top``."""
    parser.add_argument(
        "--no-color", action="store_true", help="show no colours, as the environment variable NO_COLOR does"
    )


def top(options: argparse.Namespace) -> int:
    """Show the fleet until ``q``."""
    require_package("top", "a live view", "textual", "tui", "use `loadline status`")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("top", "it needs a terminal", "Use `loadline status`, or `ssh -t`.")
    if options.no_color:
        os.environ["NO_COLOR"] = "1"
    logs.configure("auto", "critical")  # lines of a log would damage the screen
    event_loop.run(_show(target_of(options)))
    return 0


async def _show(target: Target) -> None:
    from loadline.cli.top_app import TopApp  # noqa: PLC0415 - an extra, and it reads NO_COLOR

    async with connected(target) as bus:
        await TopApp(RemoteFleet(bus, target)).run_async()


class RemoteFleet:
    """Fleet behind a connection to NATS."""

    def __init__(self, bus: NatsBus, target: Target) -> None:
        self._bus = bus
        self._target = target

    async def status(self) -> AgentStatus:
        """Return the current status."""
        return await ask_status(self._bus, self._target)

    async def explain(self, model: str) -> str:
        """Return the explanation of the newest decision and hold of a model."""
        found = await ask(self._bus, self._target, "explain", encode(ExplainRequest(model=model)), ExplainReply)
        texts = [*map(format_explanation, found.explanations), *map(format_policy_report, found.migrations)]
        return "\n\n".join(texts) or "no decision and no hold yet"

    async def order(self, method: str, model: str) -> None:
        """Pause or resume a model.

        Raises:
            LoadlineError: No agent answers, or it refuses.
        """
        reply = await ask(self._bus, self._target, method, encode(PauseCommand(model, operator())), OperatorReply)
        if not reply.accepted:
            raise LoadlineError(reply.detail)
