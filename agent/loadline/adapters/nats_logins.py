"""TLS and credentials for NATS, checked before the library uses them."""

import importlib.util
import re
import ssl
from pathlib import Path
from typing import Any, Final

from loadline.adapters.client_tls import load_context
from loadline.errors import ConfigError
from loadline.servers import NatsKnobs
from loadline.toml.regular_file import open_regular, os_error_text
from loadline.toml.secret_file import read_secret

_JWT: Final = re.compile(r"^-----BEGIN NATS USER JWT-----\r?\n(eyJ[\w-]+\.[\w-]+\.[\w-]+)\r?\n", re.MULTILINE)
_SEED: Final = re.compile(r"^-----BEGIN USER NKEY SEED-----\r?\n(SU[A-Z2-7]{56})\r?\n", re.MULTILINE)
_CREDENTIALS_CHARS_MAX: Final = 1_048_576


def tls_context(knobs: NatsKnobs) -> ssl.SSLContext | None:
    """Return the TLS settings; None for the library's defaults.

    Raises:
        ConfigError: A file cannot be used.
    """
    if not (knobs.ca_file or knobs.cert_file):
        return None
    return load_context("nats.", knobs.ca_file, knobs.cert_file, knobs.key_file)


def login_options(knobs: NatsKnobs, tls: ssl.SSLContext | None) -> dict[str, Any]:
    """Return the options of the library's ``connect`` for servers, login and TLS; files are read again for each one.

    Raises:
        ConfigError: The credentials file cannot be used; it may have changed since the start.
    """
    options: dict[str, Any] = {"servers": list(knobs.servers), "inbox_prefix": knobs.inbox_prefix}
    if knobs.user:
        options |= {"user": knobs.user, "password": lambda: read_secret(knobs.password_file)}
    if knobs.credentials_file:
        check_credentials(knobs)
        options["user_credentials"] = knobs.credentials_file
    if tls is not None:
        options["tls"] = tls
    return options


def tls_only(knobs: NatsKnobs) -> bool:
    """Return True if a server that offers no TLS must be refused."""
    return any(url.startswith("tls://") for url in knobs.servers)


def check_credentials(knobs: NatsKnobs) -> None:
    """Check the files of a login: the library hangs on a credentials file without a JWT.

    Raises:
        ConfigError: User and password file do not belong together, or the credentials file cannot be used.
    """
    if bool(knobs.user) != bool(knobs.password_file):
        raise ConfigError("nats.user", "user and password_file belong together", "Write both or neither.")
    if not knobs.credentials_file:
        return
    problem = _credentials_problem(knobs.credentials_file)
    if problem:
        remedy = "Name a file that `nsc generate creds` wrote."
        raise ConfigError("nats.credentials_file", f"{knobs.credentials_file} {problem}", remedy)
    require_packages(knobs)


def require_packages(knobs: NatsKnobs) -> None:
    """Check that the package which signs logins by credentials files is installed if it is needed.

    Raises:
        ConfigError: It is not.
    """
    if knobs.credentials_file and importlib.util.find_spec("nkeys") is None:
        instead = "use user and password_file"
        raise ConfigError.missing_package(
            "nats.credentials_file", "a credentials file", "nkeys", "loadline-agent[nkeys]", instead
        )


def _credentials_problem(path: str) -> str:
    try:
        with open_regular(Path(path)) as file:
            text = file.read(_CREDENTIALS_CHARS_MAX).decode("ascii")
    except UnicodeDecodeError:
        return "is not a credentials file"
    except (OSError, ValueError) as error:
        return f"cannot be read: {os_error_text(error)}"
    if _JWT.search(text) is None:
        return "holds no user JWT"
    return "" if _SEED.search(text) else "holds no user seed"
