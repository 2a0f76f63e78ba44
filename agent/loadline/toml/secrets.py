"""Redaction of configuration values in messages: a URL may contain a password, and messages are logged."""

import re
from typing import Final

_URLS: Final = frozenset({"nats", "nats.servers", "etcd", "etcd.endpoints"})
"""Places of URLs, and their sections, in which a URL may be written by mistake."""
_LOGIN: Final = re.compile(r":[^@]*@")
_HIDDEN: Final = "<redacted: may contain a login>"
_CHARS_MAX: Final = 60


def redacted(place: str, text: str) -> str:
    """Shorten a value for display, or redact it if it may contain a login."""
    if place in _URLS or _LOGIN.search(text):
        return _HIDDEN
    return text if len(text) <= _CHARS_MAX else f"{text[: _CHARS_MAX - 1]}…"
