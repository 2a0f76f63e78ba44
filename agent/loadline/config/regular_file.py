"""Files that people name: a FIFO among them would wait for a writer, and a device need not end."""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file, or what a link to one names.

    Raises:
        OSError: It cannot be opened, or is none; ``os_error_text`` says it in words.
    """
    # Without O_NONBLOCK it is the opening of a FIFO that waits. Of a regular file it changes nothing.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        what = "a folder" if stat.S_ISDIR(mode) else "no regular file, such as a FIFO or a device"
        raise OSError(errno.EINVAL, f"it is {what}")
    return os.fdopen(number, "rb")


def os_error_text(error: OSError | ValueError) -> str:
    """Why a file cannot be opened, without the number of the error and the path: a path with a NUL is a ValueError."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
