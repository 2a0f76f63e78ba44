"""Options of vLLM servers of this host, read from their command lines; no API tells them."""

import ipaddress
import socket
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

_PORT_DEFAULT: Final = "8000"
_PROC: Final = Path("/proc")


def aborts_at_sigterm(url: str, proc: Path = _PROC) -> bool:
    """Return True if a vLLM server of this host listens at an address and aborts its requests at SIGTERM.

    vLLM does so unless it has a ``--shutdown-timeout`` above 0. False if its command line cannot be read.
    """
    parts = urlsplit(url)
    if not _is_local(parts.hostname or ""):
        return False
    port = str(parts.port or (443 if parts.scheme == "https" else 80))
    commands = [words for words in _command_lines(proc) if _serves(words) and _option(words, "--port") == port]
    return any(_option(words, "--shutdown-timeout") in {"", "0", "0.0"} for words in commands)


def _serves(words: list[str]) -> bool:
    return any(Path(word).name == "vllm" or word.startswith("vllm.entrypoints") for word in words[:4])


def _option(words: list[str], name: str) -> str:
    for index, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option.replace("_", "-") == name:  # vLLM takes both
            following = words[index + 1] if index + 1 < len(words) else ""
            return value if equals else following
    return _PORT_DEFAULT if name == "--port" else ""


def _command_lines(proc: Path) -> list[list[str]]:
    found = []
    for path in proc.glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().decode(errors="replace").split("\0")[:-1])
        except OSError:  # it has ended, or belongs to another user
            continue
    return found


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in {"localhost", socket.gethostname()}
