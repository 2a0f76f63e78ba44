"""``step``: the agent for a simulator of somebody else's, a line in and a line out."""

import argparse
import sys
from typing import BinaryIO

from loadline.cli.output import printable
from loadline.config import load, validate
from loadline.errors import DataError
from loadline.runtime.settings import settings
from loadline.sim.step import Stepper
from loadline.wire.steps import LINE_BYTES_MAX, StepError, StepOutput, decode_step, encode_step

WRONG_INPUT = 2


def step(options: argparse.Namespace) -> int:
    """Answer steps until there are no more; a line that cannot be used ends it."""
    config = load(options.config)
    for warning in validate(config):
        print(f"loadline: warning: {warning}", file=sys.stderr)
    stepper = Stepper(settings(config), root=config.agent.root, frame_bytes_max=config.nats.frame_bytes_max)
    return answer(stepper, sys.stdin.buffer, sys.stdout.buffer)


def answer(stepper: Stepper, lines: BinaryIO, answers: BinaryIO) -> int:
    """Answer each line with one line, at once; gives the exit code."""
    number = 0
    while line := lines.readline(LINE_BYTES_MAX + 1):
        number += 1
        try:
            _say(answers, stepper.step(decode_step(line)))
        except DataError as error:
            text = f"line {number}: {error}"
            _say(answers, StepError(text))
            print(f"loadline: {printable(text)}", file=sys.stderr)
            return WRONG_INPUT
    return 0


def _say(answers: BinaryIO, said: StepOutput | StepError) -> None:
    answers.write(encode_step(said) + b"\n")
    answers.flush()
