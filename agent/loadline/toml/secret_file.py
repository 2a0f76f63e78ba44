"""Passwords and tokens in files, which are read again at each use, so that they can be rotated."""

from pathlib import Path
from typing import Final

from loadline.toml.regular_file import open_regular

_BYTES_MAX: Final = 65_536


def read_secret(path: str | Path) -> str:
    """Return the secret in a file, without the white space around it and a byte order mark.

    Raises:
        OSError: It cannot be opened, or is not a regular file: a FIFO would stop the event loop.
        ValueError: It is larger than 64 KiB, or not UTF-8.
    """
    with open_regular(Path(path)) as file:
        data = file.read(_BYTES_MAX + 1)
    if len(data) > _BYTES_MAX:
        raise ValueError(f"{path} is larger than {_BYTES_MAX} bytes")
    return data.decode("utf-8-sig").strip()  # Notepad begins a file with a byte order mark
