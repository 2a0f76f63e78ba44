"""Command ``step``: drive the agent from another simulator, one JSON line in and one out per step."""

import argparse
import sys
from typing import BinaryIO

from loadline.cli.exit_codes import INVALID_INPUT
from loadline.cli.output import printable
from loadline.cli.packages import check_scaling_packages
from loadline.config import load, validate
from loadline.errors import DataError
from loadline.runtime.settings import settings
from loadline.sim.step import Stepper
from loadline.wire.steps import LINE_BYTES_MAX, StepError, StepOutput, decode_step, encode_step


def step(options: argparse.Namespace) -> int:
    """Answer the steps on stdin until it ends; an invalid line ends the command with exit code 2."""
    config = load(options.config)
    for warning in validate(config):
        print(f"loadline: warning: {warning}", file=sys.stderr)
    check_scaling_packages(config)
    stepper = Stepper(settings(config), root=config.agent.root, frame_bytes_max=config.nats.frame_bytes_max)
    return answer_steps(stepper, sys.stdin.buffer, sys.stdout.buffer)


def answer_steps(stepper: Stepper, lines: BinaryIO, answers: BinaryIO) -> int:
    """Answer each line with one line, flushed at once; return the exit code."""
    number = 0
    while line := lines.readline(LINE_BYTES_MAX + 1):
        number += 1
        try:
            _write(answers, stepper.step(decode_step(line)))
        except DataError as error:
            text = f"line {number}: {error}"
            _write(answers, StepError(text))
            print(f"loadline: {printable(text)}", file=sys.stderr)
            return INVALID_INPUT
    return 0


def _write(answers: BinaryIO, answer: StepOutput | StepError) -> None:
    answers.write(encode_step(answer) + b"\n")
    answers.flush()
