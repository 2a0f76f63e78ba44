"""The lines of a text file, plain or gzipped, each bounded, and each error with its number."""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from loadline.config.regular_file import open_regular, os_error_text
from loadline.errors import DataError

LINE_BYTES_MAX = 65_536  # a prompt of a million tokens has 1954 block ids, 16 kB of JSON
LINES_MAX = 50_000_000  # a week of the largest published trace has 27 million; a gzip bomb of blank lines has no end
BYTE_ORDER_MARK = "\ufeff"
_SHOWN = 80
_GZIP_MAGIC = b"\x1f\x8b"


class LineReader:
    """The lines of a file, and the number of the one that was read last.

    Args:
        path: What errors call the file.
        stream: Its bytes, unpacked.
    """

    def __init__(self, path: Path, stream: io.BufferedReader) -> None:
        self.path = path
        self.number = 0
        self._stream = stream
        self._lines = self._read()

    def __iter__(self) -> Iterator[str]:
        """Go on after the line that was read last."""
        return self._lines

    def error(self, problem: str, remedy: str, number: int | None = None) -> DataError:
        """An error at the last line, or at line ``number``."""
        return DataError(f"{self.path}, line {number or self.number}: {problem}. {remedy}")

    def _read(self) -> Iterator[str]:
        readline = self._stream.readline
        while True:
            self.number += 1
            try:
                line = readline(LINE_BYTES_MAX + 1)
            except (OSError, EOFError, zlib.error) as error:
                raise self.error(f"cannot be read ({error})", "Fetch or pack the file again.") from error
            if not line:
                return
            if len(line) > LINE_BYTES_MAX:
                raise self.error(f"is longer than {LINE_BYTES_MAX} bytes", "Name a trace in CSV or JSON Lines.")
            if self.number > LINES_MAX:
                raise self.error(f"the file has more than {LINES_MAX} lines", "Cut the file.")
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise self.error("is no text in UTF-8", "Name a trace in CSV or JSON Lines.") from error


@contextmanager
def open_lines(path: Path) -> Iterator[LineReader]:
    """The lines of a file. Gzip is told by its first bytes, whatever the name.

    Raises:
        DataError: The file cannot be opened. Reading a line raises the same, with the line.
    """
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(open_regular(path))
            if stream.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC):
                stream = stack.enter_context(io.BufferedReader(stack.enter_context(gzip.GzipFile(fileobj=stream))))
        except (OSError, ValueError) as error:
            raise DataError(
                f"{path}: cannot be opened: {os_error_text(error)}. Name a trace in CSV or JSON Lines."
            ) from error
        yield LineReader(path, stream)


def excerpt(text: str) -> str:
    """The beginning of a piece of a file, safe to print."""
    text = text.strip()
    return ascii(text[:_SHOWN] + "..." * (len(text) > _SHOWN))
