"""Simulations side by side, each in a process of its own."""

import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess
from typing import Final

from msgspec import Struct

from loadline.errors import LoadlineError
from loadline.sim.result import SimulationResult
from loadline.sim.simulation import Scenario, simulate

_REMEDY: Final = "Try again, with fewer --jobs if memory may have run out."


class _RunningSimulation(Struct, frozen=True):
    place: int
    process: BaseProcess


def simulate_all(
    scenarios: Sequence[Scenario], jobs: int, on_progress: Callable[[float], None]
) -> list[SimulationResult]:
    """Run all of them, at most ``jobs`` at a time; gives what came of each, in their order.

    Raises:
        LoadlineError: One of them did not come to its end; the others are stopped.
    """
    # Not forked: a fork of a process that has threads, and numpy has, may hang.
    context = get_context("spawn")
    waiting = deque(enumerate(scenarios))
    running: dict[connection.Connection, _RunningSimulation] = {}
    shares = [0.0] * len(scenarios)
    outcomes: dict[int, SimulationResult] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                place, scenario = waiting.popleft()
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(scenario, sender), daemon=True)
                running[receiver] = _RunningSimulation(place, process)
                _start(process, sender, scenario.name)
            readable = connection.wait(list(running))
            for receiver, run in [(one, run) for one, run in running.items() if one in readable]:
                said = _receive(receiver, run.process, scenarios[run.place].name)
                if isinstance(said, SimulationResult):
                    outcomes[run.place] = said
                    _end(receiver, running.pop(receiver))
                else:
                    shares[run.place] = said
                    on_progress(sum(shares) / len(shares))
    finally:
        for receiver, run in running.items():
            if run.process.pid is not None:
                run.process.terminate()
            _end(receiver, run)
    return [outcomes[place] for place in range(len(scenarios))]


def _start(process: BaseProcess, sender: connection.Connection, name: str) -> None:
    try:
        process.start()
    except OSError as error:  # there are too many, or it ended before it had read what it is to do
        raise LoadlineError(f"{name}: its process could not be started ({error}). {_REMEDY}") from error
    finally:
        sender.close()


def _receive(receiver: connection.Connection, process: BaseProcess, name: str) -> SimulationResult | float:
    try:
        said: SimulationResult | float | str = receiver.recv()
    except (EOFError, OSError) as error:
        process.join()
        code = process.exitcode or 0
        why = f"was killed by signal {-code}. {_REMEDY}" if code < 0 else "failed; what it said is above."
        raise LoadlineError(f"{name}: its process {why}") from error
    if isinstance(said, str):
        raise LoadlineError(f"{name}: {said}")
    return said


def _end(receiver: connection.Connection, run: _RunningSimulation) -> None:
    if run.process.pid is not None:
        run.process.join()
    receiver.close()


def _child(scenario: Scenario, sender: connection.Connection) -> None:
    """Say how much is done, and at last what came of it, or why nothing did."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the parent ends its children
    try:
        sender.send(simulate(scenario, sender.send))
    except LoadlineError as error:
        sender.send(str(error))
    except BrokenPipeError:
        sys.exit(1)  # nobody wants to know any more
