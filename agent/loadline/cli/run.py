"""Command ``run``."""

import argparse
import sys
from contextlib import suppress

from loadline import app
from loadline.cli import warmup
from loadline.cli.configuration import configuration_warnings, load_configuration
from loadline.cli.output import printable
from loadline.config import Config
from loadline.runtime.reload import Source

arguments = warmup.arguments


def run(options: argparse.Namespace) -> int:
    """Run the agent until it is stopped by a signal."""

    def read() -> tuple[Config, list[str]]:
        config = load_configuration(options)
        return config, configuration_warnings(config)

    source = Source.at(options.config, read)
    config, warnings = source.read()
    with suppress(OSError):  # whether anybody reads them or not
        for warning in warnings:
            print(printable(f"loadline: warning: {warning}"), file=sys.stderr)
    app.run(config, source)
    return 0
