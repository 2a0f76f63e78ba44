"""Replay recorded lines to the agent of ``loadline step``.

A line is one of ``loadline step``, or an order that a simulator cannot give: ``{"pause": MODEL}``,
``{"resume": MODEL}``, ``{"drain": [MODEL, POOL, WORKER]}`` or ``{"reload": FILE}`` (another configuration). An order
has no answer; the next step takes it.

Answers are compared without sentences, as their words may change. ``numbers`` has in their place all numbers of the
explanation of every hold and decision, by size.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from loadline.config import load, validate
from loadline.core.queries import status as query
from loadline.core.vocabulary.events import AnyEvent, DrainRequested, PauseChanged, SettingsChanged
from loadline.runtime.settings import settings
from loadline.sim.step import Stepper
from loadline.wire.steps import StepOutput, decode_step

STEP = Path(__file__).parent / "step"
CASES = sorted(path.name.removesuffix(".expected.jsonl") for path in STEP.glob("*.expected.jsonl"))
FREE_TEXT = frozenset({"sentence", "text", "detail"})


class RecordedAgent:
    """Agent of one configuration in ``step/``."""

    def __init__(self, case: str) -> None:
        config = load(STEP / f"{case}.toml")
        validate(config)
        self._stepper = Stepper(settings(config), root=config.agent.root)
        self._now_ms = 0

    def run(self, line: str) -> StepOutput | None:
        """Return the agent's answer; None if the line is an order."""
        if not line.startswith('{"now_ms"'):
            (order,) = json.loads(line).items()
            self._stepper._inbox.put(_event(*order))
            return None
        recorded_step = decode_step(line.encode())
        self._now_ms = recorded_step.now_ms
        return self._stepper.step(recorded_step)

    def recorded(self, answer: StepOutput) -> str:
        """Return an answer in the form in which answers are compared."""
        numbers = {**self._numbers_of_holds(answer), **self._numbers_of_decisions(answer)}
        compared = {key: value for key, value in _without_text(msgspec.to_builtins(answer)).items() if value}
        return json.dumps(compared | ({"numbers": numbers} if numbers else {}), separators=(",", ":"))

    def whole(self, answer: StepOutput) -> str:
        """Return an answer with its sentences and explanations."""
        state = self._stepper.controller.state
        explanations = [
            found for decision in answer.decisions for found in query.explain(state, decision.decision_id, "")
        ]
        explained = [*explanations, *(query.explain(state, "", "") if answer.holds else [])]
        return json.dumps(msgspec.to_builtins(answer) | {"explained": msgspec.to_builtins(explained)})

    def status(self) -> str:
        """Return the agent's current status."""
        controller = self._stepper.controller
        found = query.status(controller.settings, controller.state, "golden", 0, self._now_ms)
        return msgspec.json.encode(found).decode()

    def _numbers_of_holds(self, answer: StepOutput) -> dict[str, list[float]]:
        evaluated = {(hold.model, hold.at_ms) for hold in answer.holds}
        found = query.explain(self._stepper.controller.state, "", "") if evaluated else []
        return {held.model: _numbers(held) for held in found if (held.model, held.at_ms) in evaluated}

    def _numbers_of_decisions(self, answer: StepOutput) -> dict[str, list[float]]:
        state = self._stepper.controller.state
        ids = [decision.decision_id for decision in answer.decisions]
        return {one: _numbers(found) for one in ids for found in query.explain(state, one, "")}


def recorded_answers(case: str) -> list[str]:
    """Replay the recorded lines of a case; return the answers in compared form."""
    agent = RecordedAgent(case)
    recorded_step = (STEP / f"{case}.jsonl").read_text("utf-8").splitlines()
    return [agent.recorded(answer) for line in recorded_step if (answer := agent.run(line)) is not None]


def _numbers(explained: object) -> list[float]:
    """Return all numbers anywhere in an explanation."""
    found: list[float] = []
    todo = [msgspec.to_builtins(explained)]
    while todo:
        value = todo.pop()
        match value:
            case dict():
                todo += value.values()
            case list() | tuple():
                todo += value
            case int() | float():
                found.append(float(f"{value:.9g}"))
    return sorted(found)


def _without_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_text(part) for key, part in value.items() if key not in FREE_TEXT}
    return [_without_text(part) for part in value] if isinstance(value, list | tuple) else value


def _event(kind: str, compared: Any) -> AnyEvent:
    match kind, compared:
        case "pause" | "resume", str(model):
            return PauseChanged(model, paused=kind == "pause", by="ada" if kind == "pause" else "")
        case "drain", [model, pool, worker]:
            return DrainRequested(model, pool, worker, by="ada")
        case "reload", str(name):
            return SettingsChanged(Raw(msgspec.json.encode(settings(load(STEP / name)))))
    raise ValueError(f"there is no order {kind!r}")
