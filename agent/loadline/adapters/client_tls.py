"""TLS of a client whose files may be replaced while it runs."""

import ssl
import time
from pathlib import Path
from typing import Final

from loadline.adapters.logs import bounded
from loadline.errors import ConfigError

_RETRY_S: Final = 10.0
"""Time after which files that could not be used are read again, though they are the same."""

_log = bounded("tls")


class ClientTls:
    """CA bundle and client certificate. New connections use the files as they are then.

    Args:
        place: Setting that errors name.
        ca_file: CA bundle; empty: the system's.
        cert_file: Client certificate; empty: none.
        key_file: Its key; empty: it is in ``cert_file``.

    Raises:
        ConfigError: A file cannot be used.
    """

    def __init__(self, place: str, ca_file: str, cert_file: str = "", key_file: str = "") -> None:
        self._ca_file, self._cert_file, self._key_file = ca_file, cert_file, key_file
        self._files = [Path(name) for name in (ca_file, cert_file, key_file) if name]
        try:
            self._read = self._unusable = self._stamps()
            self._retry_at_s = 0.0
            self._context = self._load()
        except OSError as error:
            files = ", ".join(map(str, self._files))
            raise ConfigError(place, f"{files} cannot be used: {error}", "Name PEM files.") from error

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection; while new files cannot be used, it is that of the former ones.

        It is another one after a change: one that reads a second CA bundle would trust the first one, too.
        """
        try:
            stamps = self._stamps()
            if stamps != self._read and (stamps != self._unusable or time.monotonic() >= self._retry_at_s):
                self._unusable, self._retry_at_s = stamps, time.monotonic() + _RETRY_S
                self._context = self._load()
                self._read = stamps
        except OSError as error:  # one is replaced just now
            files = [str(file) for file in self._files]
            _log.warning(
                "certificates_unusable", files=files, problem=str(error), remedy="The former ones stay in use."
            )
        return self._context

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._ca_file or None)
        if self._cert_file:
            context.load_cert_chain(self._cert_file, self._key_file or None)
        return context

    def _stamps(self) -> list[tuple[int, int, int, int]]:
        found = (file.stat() for file in self._files)
        return [(one.st_mtime_ns, one.st_ctime_ns, one.st_ino, one.st_size) for one in found]
