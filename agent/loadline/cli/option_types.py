"""Types of options. Each refuses a text with a sentence that says what to write instead."""

import argparse
import re
from collections.abc import Callable
from math import inf

import msgspec

from loadline.core.vocabulary.scalars import Name
from loadline.errors import ConfigError
from loadline.servers import check_server


def whole_number(maximum: int, minimum: int = 1) -> Callable[[str], int]:
    """Return the type of whole numbers in a range."""

    def read(text: str) -> int:
        digits = len(str(maximum))
        if not re.fullmatch(rf"[0-9]{{1,{digits}}}", text) or not minimum <= int(text) <= maximum:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {minimum} to {maximum}")
        return int(text)

    return read


def number(text: str) -> float:
    """Return NaN, which is in no range, for a text that is no number."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


def positive(text: str) -> float:
    """Read a finite number above 0."""
    if not 0 < number(text) < inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return float(text)


def seconds(maximum: float) -> Callable[[str], float]:
    """Return the type of times from 0 to ``maximum`` seconds."""

    def read(text: str) -> float:
        if not 0 <= number(text) <= maximum:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to {maximum:g}")
        return float(text)

    return read


def name(text: str) -> str:
    """Read a name; an empty one stands for the default."""
    try:
        text.encode()  # bytes of the command line that are not UTF-8 are surrogates
        return text and msgspec.convert(text, Name)
    except (UnicodeEncodeError, msgspec.ValidationError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a name of 1 to 100 printable characters") from error


def required_name(text: str) -> str:
    """Read a name that has no default."""
    if not text:
        raise argparse.ArgumentTypeError("the name is empty; `loadline status --json` lists models, pools and workers")
    return name(text)


def subject_root(text: str) -> str:
    """Read the prefix of NATS subjects."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a subject root; write tokens of A-Z a-z 0-9 _ - separated by dots"
        )
    return text


def server_url(*schemes: str) -> Callable[[str], str]:
    """Return the type of URLs of servers, which contain no login."""

    def read(text: str) -> str:
        try:
            check_server(text, "", schemes)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(f"{error.problem}. {error.remedy}") from error
        return text

    return read
