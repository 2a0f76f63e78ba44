"""Child process that fits forecasts."""

import sys

import msgspec

from loadline.adapters.frames import answer_all
from loadline.core.vocabulary.forecasts import ForecastQuery
from loadline.forecast import forecast


def main(imports: list[str]) -> None:
    """Answer queries with forecasts; see ``answer_all``."""
    decoder = msgspec.json.Decoder(ForecastQuery)
    answer_all(lambda frame: msgspec.json.encode(forecast(decoder.decode(frame))), imports)


if __name__ == "__main__":
    main(sys.argv[1:])
