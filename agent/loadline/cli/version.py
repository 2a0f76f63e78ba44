"""Command ``version``."""

import argparse

from loadline import __version__


def version(_options: argparse.Namespace) -> int:
    """Print the version."""
    print(f"loadline {__version__}")
    return 0
