"""Lines of the keys of a TOML file, which the parser of the standard library does not tell."""

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from loadline.errors import ConfigError

_SPACE: Final = re.compile(r"(?:[ \t\r\n,]|#[^\n]*)*")
_KEY_PART: Final = re.compile(r"""[ \t]*(?:"((?:[^"\\\n]|\\.)*)"|'([^'\n]*)'|([A-Za-z0-9_-]+))[ \t]*""")
_SCALAR: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}' + r"|'''.*?'{3,5}" + r'|"(?:[^"\\\n]|\\.)*"' + r"|'[^'\n]*'" + r"|[^,\]}\n#]+",
    re.DOTALL,
)
_PARENT: Final = re.compile(r"[.\[][^.\[]*$")


class FileLines(Struct, frozen=True):
    """Lines of the values of a file, and what replaces some of them."""

    name: str = ""
    lines: Mapping[str, int] = {}
    """Numbers of lines by place, such as ``models[0].pools[1].role``; the first line is 1."""
    replaced: Mapping[str, str] = {}
    """Names of what sets a value instead, such as an environment variable, by the place of the value."""

    def where(self, place: str) -> str:
        """Return the file and line of a place, or of what contains it; or what sets it instead."""
        while place:
            if place in self.replaced:
                return self.replaced[place]
            if place in self.lines:
                return f"{self.name}, line {self.lines[place]}"
            place = _PARENT.sub("", place) if _PARENT.search(place) else ""
        return self.name

    def located(self, error: ConfigError) -> ConfigError:
        """Return an error in the file with its line."""
        return ConfigError(error.place, error.problem, error.remedy, self.where(error.cause))


def key_lines(text: str) -> dict[str, int]:
    """Return the line of each key, table and element of a valid TOML text by its place."""
    return _Scanner(text).document()


class _Scanner:
    """Reader of the structure of a TOML text, which the caller has parsed, so that it is valid."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._counted = 0
        """Position up to which lines are counted."""
        self._lines: dict[str, int] = {}
        self._tables: dict[str, int] = {}
        """Number of elements of each array of tables."""

    def document(self) -> dict[str, int]:
        """Read all tables and keys."""
        table = ""
        self._skip(_SPACE)
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip(_SPACE)
        return self._lines

    def _header(self) -> str:
        """Read ``[table]`` or ``[[array of tables]]`` and return its place."""
        brackets = 2 if self._text.startswith("[[", self._at) else 1
        self._at += brackets
        parts = self._key()
        place = ""
        for depth, part in enumerate(parts):
            place = f"{place}.{part}" if place else part
            if brackets == 2 and depth == len(parts) - 1:  # noqa: PLR2004 - [[
                self._lines.setdefault(place, self._number())
                self._tables[place] = self._tables.get(place, 0) + 1
            if place in self._tables:
                place = f"{place}[{self._tables[place] - 1}]"
            self._lines.setdefault(place, self._number())
        self._at += brackets
        return place

    def _pair(self, table: str) -> None:
        """Read ``key = value``."""
        place = table
        for part in self._key():
            place = f"{place}.{part}" if place else part
            self._lines.setdefault(place, self._number())
        self._at += 1  # the equals sign
        self._value(place)

    def _value(self, place: str) -> None:
        """Read a value, with the elements of a list and the keys of an inline table."""
        self._skip(_SPACE)
        self._lines.setdefault(place, self._number())
        opened = self._text[self._at]
        if opened not in "[{":
            self._skip(_SCALAR)
            return
        self._at += 1
        self._skip(_SPACE)
        count = 0
        while self._text[self._at] not in "]}":
            if opened == "[":
                self._value(f"{place}[{count}]")
                count += 1
            else:
                self._pair(place)
            self._skip(_SPACE)
        self._at += 1

    def _key(self) -> list[str]:
        """Read a key of one or more parts, separated by dots."""
        parts = []
        while found := _KEY_PART.match(self._text, self._at):
            parts.append(next(part for part in found.groups() if part is not None))
            self._at = found.end()
            if self._text[self._at] != ".":
                break
            self._at += 1
        return parts

    def _number(self) -> int:
        """Return the number of the current line."""
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at
