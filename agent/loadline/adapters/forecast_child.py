"""Child process that fits forecasts."""

import sys
import time
from typing import Final

import msgspec

from loadline.adapters.frames import answer_all
from loadline.core.vocabulary.forecasts import ForecastQuery
from loadline.forecast import ScoringTime, forecast

UNLIMITED: Final = "unlimited"
"""Argument of a child that scores all candidates of the predictor ``auto`` before it answers."""


def main(arguments: list[str]) -> None:
    """Answer queries with forecasts; see ``answer_all``."""
    decoder = msgspec.json.Decoder(ForecastQuery)
    scoring_time = None if UNLIMITED in arguments else ScoringTime(time.monotonic)
    answer_all(lambda frame: msgspec.json.encode(forecast(decoder.decode(frame), scoring_time)))


if __name__ == "__main__":
    main(sys.argv[1:])
