"""CSV tables with column names in the first line."""

import csv
from collections.abc import Iterator

from msgspec import Struct

from loadline.errors import DataError
from loadline.traces.line_reader import LineReader, excerpt


class CsvTable(Struct, frozen=True):
    """CSV table whose first line has been read."""

    lines: LineReader
    names: tuple[str, ...]

    def column(self, name: str) -> int:
        """Return the position of a column.

        Raises:
            DataError: There is no such column.
        """
        if name not in self.names:
            raise self.lines.error(
                f"column {name!r} is missing", f"Add it; the columns are {excerpt(', '.join(self.names))}."
            )
        return self.names.index(name)

    def rows(self) -> Iterator[list[str]]:
        """Yield the remaining rows, without blank lines.

        Raises:
            DataError: A line cannot be read, or is not CSV.
        """
        try:
            yield from filter(None, csv.reader(self.lines))
        except csv.Error as error:
            raise self.lines.error(f"is not CSV ({error})", "Correct the line.") from error

    def refused(self, row: list[str], wanted: str) -> DataError:
        """Return an error for a row with invalid cells."""
        return self.lines.error(f"{excerpt(','.join(row))} is not a row of {wanted}", "Correct or drop the line.")


def read_header(lines: LineReader, header: str) -> CsvTable:
    """Parse the first line of a table."""
    try:
        names = next(csv.reader([header]), [])
    except csv.Error as error:
        raise lines.error(f"is not CSV ({error})", "Name a trace in CSV or JSON Lines.") from error
    return CsvTable(lines, tuple(name.strip() for name in names))
