"""Sentences with places for numbers."""

from collections.abc import Mapping

from loadline.core.vocabulary.durations import rounded_duration


def fill_in(sentence: str, numbers: Mapping[str, float]) -> str:
    """Fill numbers into a sentence.

    ``{left_ms:time}`` becomes a rounded duration with its unit, ``{wanted:workers}`` a number of workers.

    Raises:
        KeyError: A number is missing.
    """
    if ":time}" not in sentence and ":workers}" not in sentence:
        return sentence.format(**numbers)
    return sentence.format(**{name: _Number(value) for name, value in numbers.items()})


class _Number(float):
    """Number with formats for times in ms and for numbers of workers."""

    def __format__(self, form: str) -> str:
        if form == "time":
            return rounded_duration(self)
        if form == "workers":
            count = super().__format__("g")
            return f"{count} worker" if count == "1" else f"{count} workers"
        return super().__format__(form)
