"""Reader of text files, plain or gzipped, with bounded lines and errors that name the line."""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from loadline.errors import DataError
from loadline.toml.regular_file import open_regular, os_error_text

LINE_BYTES_MAX = 65_536  # a prompt of a million tokens has 1,954 block ids, 16 kB of JSON
LINES_MAX = 50_000_000  # a week of the largest published trace has 27 million; bounds a gzip bomb of blank lines
BYTE_ORDER_MARK = "\ufeff"
_SHOWN = 80
_GZIP_MAGIC = b"\x1f\x8b"


class LineReader:
    """Iterator over the lines of a file that knows the number of the last one.

    Args:
        path: Path of the file, for errors.
        stream: Uncompressed bytes of the file.
    """

    def __init__(self, path: Path, stream: io.BufferedReader) -> None:
        self.path = path
        self.number = 0
        self._stream = stream
        self._lines = self._read()

    def __iter__(self) -> Iterator[str]:
        """Continue after the last line read."""
        return self._lines

    def error(self, problem: str, remedy: str, number: int | None = None) -> DataError:
        """Return an error at the last line, or at line ``number``."""
        return DataError(f"{self.path}, line {number or self.number}: {problem}. {remedy}")

    def _read(self) -> Iterator[str]:
        readline = self._stream.readline
        while True:
            self.number += 1
            try:
                line = readline(LINE_BYTES_MAX + 1)
            except (OSError, EOFError, zlib.error) as error:
                raise self.error(f"cannot be read ({error})", "Download or compress the file again.") from error
            if not line:
                return
            if len(line) > LINE_BYTES_MAX:
                raise self.error(f"is longer than {LINE_BYTES_MAX} bytes", "Name a trace in CSV or JSON Lines.")
            if self.number > LINES_MAX:
                raise self.error(f"the file has more than {LINES_MAX} lines", "Cut the file.")
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise self.error("is not UTF-8 text", "Name a trace in CSV or JSON Lines.") from error


@contextmanager
def open_lines(path: Path) -> Iterator[LineReader]:
    """Open a file by lines; detect gzip by its first bytes.

    Raises:
        DataError: The file cannot be opened. Reading a line raises it too, with the line number.
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
    """Return the beginning of a text from a file, escaped for output."""
    text = text.strip()
    return ascii(text[:_SHOWN] + "..." * (len(text) > _SHOWN))
