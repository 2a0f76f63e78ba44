"""Command ``completion``: a script that completes commands, options, choices and file names in a shell."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import shtab

from loadline.cli import main
from loadline.cli.lazy_parser import LazyParser

SHELLS: Final = ("bash", "zsh", "tcsh")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``completion``."""
    parser.add_argument("shell", choices=SHELLS, help="shell that reads the script")


def completion(options: argparse.Namespace) -> int:
    """Print the script for a shell."""
    root = main.parser()
    for parser in all_parsers(root):
        for action in parser._actions:  # noqa: SLF001 - argparse has no public list of options
            if action.type is Path:
                action.complete = shtab.DIRECTORY if action.metavar == "DIRECTORY" else shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(root, shell=options.shell))
    return 0


def all_parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and those of its commands, each with all its options."""
    if isinstance(parser, LazyParser):
        parser.load()
    yield parser
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list of commands
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - the only way to recognise them
            for each in action.choices.values():
                yield from all_parsers(each)
