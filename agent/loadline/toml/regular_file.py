"""Opening of regular files only: opening a FIFO blocks until it has a writer, and a device may be endless."""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file, following links.

    Raises:
        OSError: It cannot be opened, or is not a regular file; format it with ``os_error_text``.
    """
    # Without O_NONBLOCK, opening a FIFO blocks. It has no effect on a regular file.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        what = "a folder" if stat.S_ISDIR(mode) else "not a regular file, but a FIFO or a device"
        raise OSError(errno.EINVAL, f"it is {what}", str(path))
    return os.fdopen(number, "rb")


def os_error_text(error: OSError | ValueError) -> str:
    """Format the reason of a failure to open a file, without errno and path; a path with NUL raises ValueError."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
