"""``run`` and ``check``."""

import argparse
import sys

from loadline import app
from loadline.cli import warmup
from loadline.cli.show import printable
from loadline.config import describe, load, validate

arguments = warmup.arguments


def run(options: argparse.Namespace) -> int:
    """Run the agent until it is told to stop."""
    config = warmup.warmed(load(options.config), options)
    for warning in validate(config):
        print(f"loadline: warning: {warning}", file=sys.stderr)
    app.run(config)
    return 0


def check(options: argparse.Namespace) -> int:
    """Say what is wrong with a configuration, what looks wrong, and what it will do."""
    config = warmup.warmed(load(options.config), options)
    warnings = validate(config)
    app.settings(config)  # reads the traces to start warm with: one that cannot be used is an error
    print(printable(describe(config)))
    for warning in warnings:
        print(printable(f"warning: {warning}"))
    print(f"{options.config}: valid, {len(warnings)} warning{'' if len(warnings) == 1 else 's'}")
    return 0
