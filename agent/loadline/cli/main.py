"""Command line: parse options, run one command, map errors to exit codes."""

import argparse
import io
import os
import shlex
import signal
import sys
from contextlib import suppress
from pathlib import Path

from loadline import __version__
from loadline.cli import output
from loadline.cli.exit_codes import FAILED, INTERRUPTED, INVALID_INPUT, TERMINATED, Command
from loadline.cli.lazy_parser import LazyParser
from loadline.cli.option_types import name as name_option
from loadline.cli.option_types import required_name, subject_root
from loadline.errors import ConfigError, DataError, LoadlineError


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code."""
    written = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name may have letters that the terminal lacks
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # ends child processes too
    try:
        return _run(written)
    except BrokenPipeError:
        return 0  # the reader of stdout has gone, as `head` does
    except ConfigError as error:
        for one in error.errors:
            _print_error(one)
        return INVALID_INPUT
    except DataError as error:
        _print_error(error)
        return INVALID_INPUT
    except (LoadlineError, OSError) as error:
        _print_error(error)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(written: list[str]) -> int:
    """Run one command, and write what it printed: Python itself would do that after `main`, where nothing handles it.

    Raises:
        BrokenPipeError: The reader of stdout has gone.
        LoadlineError: Stdout cannot be written, or the command has failed, which comes first.
    """
    try:
        options = parser().parse_args(written, argparse.Namespace(line=shlex.join(["loadline", *written])))
        command: Command = options.command
        code = command(options)
    except SystemExit:
        _write_output()  # the help, or the version
        raise
    except BaseException:
        with suppress(OSError, LoadlineError):
            _write_output()
        raise
    _write_output()
    return code


def _write_output() -> None:
    """Write what stdout buffers, or discard it if that fails: Python would exit with code 120.

    Raises:
        BrokenPipeError: The reader of stdout has gone.
        LoadlineError: Stdout cannot be written.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        if isinstance(error, BrokenPipeError):
            raise
        remedy = "Free some space there, or write the output elsewhere."
        raise LoadlineError(f"stdout: cannot be written: {error.strerror}. {remedy}") from error


def _print_error(error: Exception) -> None:
    print(f"loadline: {output.printable(str(error))}", file=sys.stderr)


def parser() -> argparse.ArgumentParser:
    """Build the parser of all commands; those that import much add their options only when they are called."""
    root = argparse.ArgumentParser(prog="loadline", description="Autoscaling agent for LLM inference fleets.")
    root.add_argument("--version", action="version", version=f"loadline {__version__}", help="print the version")
    commands = root.add_subparsers(metavar="COMMAND", required=True, parser_class=LazyParser)

    def add(name: str, runs: str, text: str) -> LazyParser:
        return commands.add_parser(name, help=text, description=text, runs=runs)

    add(
        "up",
        "up.up",
        "Run a demo: NATS, etcd, an agent, a scaler and a simulated fleet that serves a real trace.",
    )
    add("simulate", "simulate.simulate", "Simulate a configuration on a trace, in virtual time.")
    add(
        "compare",
        "compare.compare",
        "Compare configurations on a trace, against common baselines and a theoretical bound.",
    )
    add("gateway", "gateway.gateway", "Route requests of the OpenAI API to registered engines.")
    add("forecast", "forecast.forecast", "Score load predictors on a trace.")
    add("fit", "fit.fit", "Fit the linear latency model of an engine to a profiler's sweeps.")
    add("profile", "profile.profile", "Measure engines behind an OpenAI-compatible API, for the planners.")
    _only(_config(add("run", "run.run", "Run the agent.")), "only migrate requests; another autoscaler scales")
    _only(
        _config(add("check", "check.check", "Validate a configuration and describe what the agent does with it.")),
        "check for an agent that only migrates requests",
    )
    add("doctor", "doctor.doctor", "Check a deployment: servers, permissions, clocks, versions, scalers and engines.")
    top = _only(
        add("top", "top.top", "Show the fleet live in the terminal."), "show the agent that only migrates requests"
    )
    _connection(top)
    _remote_agent(add("status", "remote.status", "Show models, pools and the last decisions."))
    _explain(_remote_agent(add("explain", "remote.explain", "Explain a decision, or why none is made.")))
    history = add("history", "history.history", "Show decisions, holds and migrations, with reasons and numbers.")
    _only(_connection(history), "address the agent that only migrates requests")
    replay = add("replay", "journal.replay", "Replay a journal and verify that every effect is identical.")
    replay.add_argument("journal", type=Path, metavar="JOURNAL", help="folder of a journal, or one segment")
    output.arguments(replay)
    add("view", "view.view", "Show a journal on the live page, with a slider for the time.")
    add("sidecar", "sidecar.sidecar", "Make a running inference engine, such as vLLM, a worker of the fleet.")
    _config(add("step", "step.step", "Drive the agent from your own simulator: JSON lines on stdin and stdout."))
    drain = _remote(add("drain", "remote.drain", "Drain one worker and take it out of service."))
    for name in ("model", "pool", "worker"):
        drain.add_argument(name, type=required_name, metavar=name.upper(), help=f"name of the {name}")
    for name in ("pause", "resume"):
        text = f"{name.capitalize()} scaling decisions and migrations for a model."
        _remote_agent(add(name, f"remote.{name}", text)).add_argument(
            "model", type=required_name, metavar="MODEL", help="name of the model"
        )
    add("source", "source.source", "Bring the figures of another system's engines and routers to the agent.")
    add("scaler", "scaler.scaler", "Apply the agent's decisions.")
    add("completion", "completion.completion", "Print a script that completes commands and options in a shell.")
    add("version", "version.version", "Print the version.")
    return root


def _explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "decision",
        nargs="?",
        type=name_option,
        default="",
        metavar="DECISION-ID",
        help="decision to explain (default: the newest)",
    )
    parser.add_argument("--model", type=name_option, default="", metavar="NAME", help="explain only this model")
    parser.add_argument("--journal", type=Path, metavar="PATH", help="read a journal instead of asking an agent")


def _only(parser: argparse.ArgumentParser, text: str) -> argparse.ArgumentParser:
    parser.add_argument("--only", choices=("migration",), help=text)
    return parser


def _config(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="configuration of the agent (TOML)")
    return parser


def _remote(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    output.arguments(_connection(parser))
    return parser


def _connection(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    connection = parser.add_argument_group("connection")
    connection.add_argument(
        "--config", type=Path, metavar="FILE", help="read server, login and root from the agent's configuration"
    )
    connection.add_argument("--nats", metavar="URL", help="NATS server (default: nats://127.0.0.1:4222)")
    connection.add_argument("--root", type=subject_root, help="prefix of every NATS subject (default: loadline)")
    return parser


def _remote_agent(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    return _only(_remote(parser), "address the agent that only migrates requests")
