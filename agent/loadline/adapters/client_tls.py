"""TLS of a client whose files may be replaced while it runs."""

import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from loadline.adapters.logs import bounded
from loadline.errors import ConfigError
from loadline.toml.regular_file import open_regular, os_error_text

_RETRY_S: Final = 10.0
"""Time after which files that could not be used are read again, though they are the same."""

_Stamps = list[tuple[int, int, int, int]]

_log = bounded("tls")


def load_context(
    section: str, ca_file: str, cert_file: str = "", key_file: str = "", *, ca_key: str = "ca_file"
) -> ssl.SSLContext:
    """Return a context for connections of a client; a server checks its files by it.

    Args:
        section: Section of the files with a final dot, such as ``etcd.``, for errors; empty: the top level.
        ca_file: CA bundle; empty: the system's.
        cert_file: Certificate; empty: none.
        key_file: Its key, which has no passphrase.
        ca_key: Key of the CA bundle in its section.

    Raises:
        ConfigError: A file cannot be used.
    """
    for key, file in {ca_key: ca_file, "cert_file": cert_file, "key_file": key_file}.items():
        if file:
            with _named(f"{section}{key}", file):
                open_regular(Path(file)).close()  # the library would wait for the writer of a FIFO
    with _named(f"{section}{ca_key}", ca_file):
        context = ssl.create_default_context(cafile=ca_file or None)
    if cert_file:
        with _named(f"{section}cert_file", f"{cert_file} with {key_file}"):
            context.load_cert_chain(cert_file, key_file, partial(_refuse_passphrase, section, key_file))
    return context


@contextmanager
def _named(place: str, files: str) -> Iterator[None]:
    """Name the place of files that cannot be used."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise ConfigError(place, f"{files} cannot be used: {os_error_text(error)}", "Name a PEM file.") from error


def _refuse_passphrase(section: str, key_file: str) -> NoReturn:
    """Refuse an encrypted key: without a callback, the library asks at the terminal and waits for an answer."""
    raise ConfigError(f"{section}key_file", f"{key_file} has a passphrase", "Name a file with the key in plain text.")


class ClientTls:
    """CA bundle and client certificate. New connections use the files as they are then.

    Arguments and errors are those of ``load_context``.
    """

    def __init__(self, section: str, ca_file: str, cert_file: str = "", key_file: str = "") -> None:
        self._load = partial(load_context, section, ca_file, cert_file, key_file)
        self._files = [Path(name) for name in (ca_file, cert_file, key_file) if name]
        self._context = self._load()
        self._read: _Stamps = []  # the first connection reads them again, as they may be replaced meanwhile
        self._unusable: _Stamps = []
        self._retry_at_s = 0.0

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
        except (OSError, ConfigError) as error:  # one is replaced just now
            files = [str(file) for file in self._files]
            _log.warning(
                "certificates_unusable", files=files, problem=str(error), remedy="The former ones stay in use."
            )
        return self._context

    def _stamps(self) -> _Stamps:
        found = (file.stat() for file in self._files)
        return [(one.st_mtime_ns, one.st_ctime_ns, one.st_ino, one.st_size) for one in found]
