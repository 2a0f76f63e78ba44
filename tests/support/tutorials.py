"""Files and commands of a tutorial."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path


def blocks_of(document: Path) -> Iterator[tuple[str, str]]:
    """Yield the code blocks of a tutorial with their languages; a file has its name in the first line."""
    for found in re.finditer(r"^ *```(\w+)\n(.*?)^ *```$", document.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        yield found[1], textwrap.dedent(found[2])


def commands(text: str) -> list[str]:
    """Return the commands of a block of a console, each as one line."""
    return [found.replace("\\\n", " ") for found in re.findall(r"^\$ ((?:.*\\\n)*.*)", text, re.MULTILINE)]
