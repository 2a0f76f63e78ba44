"""Standard streams that the parent process closed, as ``loadline run <&- >&- 2>&- &`` does."""

import os
import sys


def open_closed() -> None:
    """Open closed standard streams to nowhere.

    Python has None in their place, which cannot be written. Their numbers would be those of the next files that are
    opened, such as a connection or the journal, and a child process that writes to stderr would write into these.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8")
            os.set_inheritable(stream.fileno(), True)  # noqa: FBT003 - the function takes no keywords
            setattr(sys, name, stream)
