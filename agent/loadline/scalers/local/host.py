"""Resources of a host that workers do not share: GPUs, ports and slots."""

import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Final

from msgspec import Struct

from loadline.errors import ConfigError

_NVIDIA_SMI = ("nvidia-smi", "--query-gpu=index", "--format=csv,noheader")
_NVIDIA_SMI_TIMEOUT_S = 20.0
_PORT_MAX: Final = 65_535


class Allotment(Struct, frozen=True):
    """Resources of one worker."""

    slot: int
    port: int
    gpus: tuple[str, ...]

    def names(self) -> dict[str, str]:
        """Return the values of the placeholders in commands and variables."""
        return {"slot": str(self.slot), "port": str(self.port), "gpus": ",".join(self.gpus)}


class HostResources:
    """Free and used resources of a host.

    Args:
        gpus: Names of the GPUs, as ``CUDA_VISIBLE_DEVICES`` takes them; empty: none are assigned.
        first_port: Lowest port.
        ports: Number of ports from there on.
        port_is_free: Returns True if nothing listens on a port of this host.
    """

    def __init__(
        self, gpus: Sequence[str], first_port: int, ports: int, port_is_free: Callable[[int], bool] | None = None
    ) -> None:
        self._gpus = tuple(gpus)
        self._ports = [*range(first_port, min(first_port + ports, _PORT_MAX + 1))]
        """Ports in the order in which they are given away."""
        self._port_is_free = port_is_free or _is_free
        self._used: dict[int, Allotment] = {}

    def allocate(self, gpus: int, taken: Mapping[str, str] | None = None) -> Allotment | str:
        """Allocate the lowest free slot, port and GPUs for a worker; return a sentence that names what is missing.

        The port that was released last comes last: the entry of a worker that was killed has its address until it
        expires, and routers would send its requests to the engine of another model there.

        Args:
            gpus: Number of GPUs.
            taken: GPUs that processes of others use, each with the reason.
        """
        taken = taken or {}
        used_gpus = {gpu for one in self._used.values() for gpu in one.gpus}
        used_ports = {one.port for one in self._used.values()}
        unused = [gpu for gpu in self._gpus if gpu not in used_gpus]
        free_gpus = [gpu for gpu in unused if gpu not in taken]
        if self._gpus and len(free_gpus) < gpus:
            reasons = [taken[gpu] for gpu in unused if gpu in taken]
            needed = f"needs {gpus} GPU{'' if gpus == 1 else 's'}, {len(free_gpus)} of {len(self._gpus)} are free"
            return "; ".join([needed, *reasons])
        port = next((port for port in self._ports if port not in used_ports and self._port_is_free(port)), None)
        if port is None:
            first, last = min(self._ports), max(self._ports)
            remedy = "raise ports" if last < _PORT_MAX else "lower first_port"
            return f"needs a port, none from {first} to {last} is free: {remedy}"
        slot = next(number for number in range(len(self._used) + 1) if number not in self._used)
        found = self._used[slot] = Allotment(slot, port, tuple(free_gpus[:gpus]))
        return found

    def adopt(self, allotment: Allotment) -> None:
        """Allocate what a worker already has."""
        self._used[allotment.slot] = allotment

    def release(self, allotment: Allotment) -> None:
        """Release what a worker had."""
        del self._used[allotment.slot]
        if allotment.port in self._ports:  # one that was adopted may be of another configuration
            self._ports.remove(allotment.port)
            self._ports.append(allotment.port)


def installed_gpus() -> tuple[str, ...]:
    """Return the indices of this host's NVIDIA GPUs.

    Raises:
        ConfigError: ``nvidia-smi`` does not answer.
    """
    try:
        found = subprocess.run(  # noqa: S603 - a constant command
            _NVIDIA_SMI, capture_output=True, text=True, check=True, timeout=_NVIDIA_SMI_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        remedy = 'List the GPUs, such as gpus = ["0", "1"], or leave gpus out.'
        raise ConfigError("gpus", f"nvidia-smi does not answer: {error}", remedy) from error
    return tuple(line.strip() for line in found.stdout.splitlines() if line.strip())


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError:
            return False
    return True
