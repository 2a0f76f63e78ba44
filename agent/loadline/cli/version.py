"""Command ``version``."""

import argparse

from msgspec import Struct

from loadline import __version__
from loadline.cli import output

arguments = output.arguments


class VersionResult(Struct, frozen=True):
    """Result of ``loadline version``."""

    version: str = __version__


def version(options: argparse.Namespace) -> int:
    """Print the version."""
    output.print_result(options, VersionResult(), f"loadline {__version__}")
    return 0
