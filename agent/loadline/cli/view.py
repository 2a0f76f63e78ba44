"""Command ``view``: the live page over a journal of the past."""

import argparse
import asyncio
from pathlib import Path

from aiohttp import web

from loadline.adapters.http_runner import http_runner
from loadline.cli import event_loop
from loadline.cli.option_types import whole_number
from loadline.cli.progress import progress_display
from loadline.errors import ConfigError
from loadline.toml.regular_file import os_error_text
from loadline.web.journal_handlers import JournalHandlers
from loadline.web.journal_view import JournalView


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``view``."""
    parser.add_argument("journal", type=Path, metavar="JOURNAL", help="folder of a journal, or one segment")
    parser.add_argument("--quiet", action="store_true", help="do not show progress")
    parser.add_argument(
        "--port",
        type=whole_number(65_535, minimum=0),
        default=0,
        metavar="PORT",
        help="port on 127.0.0.1 (default: a free one)",
    )


def view(options: argparse.Namespace) -> int:
    """Serve the page of a journal until interrupted."""
    with progress_display("replaying the newest segment", "MB", quiet=options.quiet) as on_progress:
        shown = JournalView(options.journal, on_progress)
    event_loop.run(_serve(JournalHandlers(shown, options.journal.name), options.port))
    return 0


async def _serve(handlers: JournalHandlers, port: int) -> None:
    application = web.Application()
    application.add_routes(handlers.routes())
    runner = http_runner(application, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
        except OSError as error:
            problem = f"cannot listen on 127.0.0.1:{port} ({os_error_text(error)})"
            raise ConfigError("--port", problem, "Name another port, or leave it out.") from error
        print(f"live page of the journal: http://127.0.0.1:{runner.addresses[0][1]}/  (Ctrl-C ends it)", flush=True)
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
