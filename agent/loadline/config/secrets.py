"""What is never shown of a configuration: a URL may hold a password, and what is said of it ends up in logs."""

import re
from typing import Final

_URLS: Final = frozenset({"nats", "nats.servers", "etcd", "etcd.endpoints"})
"""Places of URLs, and the sections around them: one may stand where a table belongs."""
_LOGIN: Final = re.compile(r":[^@]*@")
_HIDDEN: Final = "a value that is not shown, for it may hold a login"
_CHARS_MAX: Final = 60


def redacted(place: str, text: str) -> str:
    """A value of a key as people may see it: in short, or not at all."""
    if place in _URLS or _LOGIN.search(text):
        return _HIDDEN
    return text if len(text) <= _CHARS_MAX else f"{text[: _CHARS_MAX - 1]}…"
