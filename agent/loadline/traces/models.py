"""Models of the requests of a trace, from its column ``model``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from loadline.traces.csv_table import read_header
from loadline.traces.line_reader import BYTE_ORDER_MARK, open_lines

_COLUMN: Final = "model"


def models_of(path: Path) -> Iterator[str]:
    """Yield the names in the column ``model`` of a CSV file, each once, in order of appearance.

    Raises:
        DataError: The file cannot be used; the text names file, line and remedy.
    """
    with open_lines(path) as lines:
        found = read_header(lines, next(iter(lines), "").removeprefix(BYTE_ORDER_MARK))
        if _COLUMN not in found.names:
            return
        at, seen = found.column(_COLUMN), set[str]()
        for row in found.rows():
            name = row[at] if at < len(row) else ""
            if name and name not in seen:
                seen.add(name)
                yield name
