"""Simulations in parallel, each in a child process."""

import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess
from typing import Final

from msgspec import Struct

from loadline.config.plugins import discover
from loadline.errors import LoadlineError
from loadline.sim.result import SimulationResult
from loadline.sim.simulation import Scenario, simulate

_REMEDY: Final = "Try again, with fewer --jobs if memory may have run out."


class _RunningSimulation(Struct, frozen=True):
    index: int
    process: BaseProcess


def simulate_all(
    scenarios: Sequence[Scenario], jobs: int, on_progress: Callable[[float], None]
) -> list[SimulationResult]:
    """Run all scenarios, at most ``jobs`` at a time; return their outcomes in the same order.

    Raises:
        LoadlineError: A simulation failed; the others are stopped.
    """
    # Spawned, since a fork of a process with threads, as numpy starts, may hang.
    context = get_context("spawn")
    waiting = deque(enumerate(scenarios))
    running: dict[connection.Connection, _RunningSimulation] = {}
    progress = [0.0] * len(scenarios)
    outcomes: dict[int, SimulationResult] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                index, scenario = waiting.popleft()
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(scenario, sender), daemon=True)
                running[receiver] = _RunningSimulation(index, process)
                _start(process, sender, scenario.name)
            readable = connection.wait(list(running))
            for receiver, run in [(one, run) for one, run in running.items() if one in readable]:
                message = _receive(receiver, run.process, scenarios[run.index].name)
                if isinstance(message, SimulationResult):
                    outcomes[run.index] = message
                    _end(receiver, running.pop(receiver))
                else:
                    progress[run.index] = message
                    on_progress(sum(progress) / len(progress))
    finally:
        for receiver, run in running.items():
            if run.process.pid is not None:
                run.process.terminate()
            _end(receiver, run)
    return [outcomes[index] for index in range(len(scenarios))]


def _start(process: BaseProcess, sender: connection.Connection, name: str) -> None:
    try:
        process.start()
    except OSError as error:  # too many processes, or the child ended before it had read its arguments
        raise LoadlineError(f"{name}: cannot start its process ({error}). {_REMEDY}") from error
    finally:
        sender.close()


def _receive(receiver: connection.Connection, process: BaseProcess, name: str) -> SimulationResult | float:
    try:
        message: SimulationResult | float | str = receiver.recv()
    except (EOFError, OSError) as error:
        process.join()
        code = process.exitcode or 0
        why = f"was killed by signal {-code}. {_REMEDY}" if code < 0 else "failed; its error is above."
        raise LoadlineError(f"{name}: its process {why}") from error
    if isinstance(message, str):
        raise LoadlineError(f"{name}: {message}")
    return message


def _end(receiver: connection.Connection, run: _RunningSimulation) -> None:
    if run.process.pid is not None:
        run.process.join()
    receiver.close()


def _child(scenario: Scenario, sender: connection.Connection) -> None:
    """Send the progress (0..1) and at last the outcome, or the reason of a failure."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent ends its children
    discover()
    try:
        sender.send(simulate(scenario, sender.send))
    except LoadlineError as error:
        sender.send(str(error))
    except BrokenPipeError:
        sys.exit(1)  # the parent has ended
