"""The command line: parse, call, print. Exit codes: 0 done, 1 it did not work, 2 it was called wrongly."""

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from loadline.cli import output
from loadline.cli.lazy_parser import LazyParser
from loadline.errors import LoadlineError

Command = Callable[[argparse.Namespace], int]


def main(arguments: list[str] | None = None) -> int:
    """Run one command; gives its exit code."""
    written = sys.argv[1:] if arguments is None else arguments
    try:
        options = parser().parse_args(written, argparse.Namespace(line=shlex.join(["loadline", *written])))
        command: Command = options.command
        return command(options)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has seen enough
        return 0
    except (LoadlineError, OSError) as error:
        print(f"loadline: {output.printable(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def parser() -> argparse.ArgumentParser:
    """What may be written on the command line."""
    root = argparse.ArgumentParser(prog="loadline", description="Keeps a fleet of LLM engines at its load line.")
    commands = root.add_subparsers(metavar="COMMAND", required=True, parser_class=LazyParser)

    def add(name: str, runs: str, text: str) -> LazyParser:
        return commands.add_parser(name, help=text, description=text, runs=runs)

    add(
        "up",
        "up.up",
        "See it work: servers, agent, scaler and a demo fleet on a real trace. Requests move between workers.",
    )
    add("simulate", "simulate.simulate", "Try a configuration on a trace, in virtual time.")
    add("compare", "compare.compare", "Compare configurations on a trace, next to what is possible.")
    add("forecast", "forecast.forecast", "Score the predictors on the load of a trace.")
    add("fit", "fit.fit", "Fit the four numbers of an engine to a profiler's sweeps.")
    _only(_config(add("run", "serve.run", "Run the agent.")), "do nothing but that: somebody else scales")
    _only(_config(add("check", "serve.check", "Check a configuration and say what it will do.")), "of an agent alone")
    _asking_either(add("status", "remote.status", "Show models, pools and the last decisions."))
    explain = _asking_either(add("explain", "remote.explain", "Show why a decision was made, or why none is."))
    explain.add_argument("decision", nargs="?", default="", metavar="DECISION-ID", help="default: the newest")
    explain.add_argument("--model", default="", help="only this model")
    explain.add_argument("--journal", type=Path, metavar="PATH", help="look in a journal, without a running agent")
    replay = add("replay", "journal.replay", "Replay a journal; fails at the first difference.")
    replay.add_argument("journal", type=Path, metavar="JOURNAL", help="a journal's folder, or one segment")
    _config(add("step", "step.step", "Drive the agent from a simulator of your own: JSON lines in, JSON lines out."))
    drain = _asking(add("drain", "remote.drain", "Empty one worker and take it out."))
    for name in ("model", "pool", "worker"):
        drain.add_argument(name)
    for name in ("pause", "resume"):
        sub = _asking_either(add(name, f"remote.{name}", f"{name.capitalize()} the decisions and moves of a model."))
        sub.add_argument("model")
    add("version", "version.version", "Print the version.")
    return root


def _only(parser: argparse.ArgumentParser, text: str) -> argparse.ArgumentParser:
    parser.add_argument("--only", choices=("migration",), help=text)
    return parser


def _config(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="a TOML file")
    return parser


def _asking(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    where = parser.add_argument_group("where to ask")
    where.add_argument("--config", type=Path, metavar="FILE", help="take server, login and root from the agent's file")
    where.add_argument("--nats", metavar="URL", help="default: nats://127.0.0.1:4222")
    where.add_argument("--root", help="first tokens of every subject; default: loadline")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    return parser


def _asking_either(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    return _only(_asking(parser), "ask the agent that does nothing but that")
