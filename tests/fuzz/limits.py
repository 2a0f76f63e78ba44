"""Limits of a process that reads hostile input."""

import resource
from pathlib import Path


def limit_resources(allowance_mb: int, cpu_s: int) -> None:
    """Limit memory to what is in use now plus an allowance, and CPU time.

    Raises:
        RuntimeError: The system does not enforce the limit.
    """
    allowance = allowance_mb * 1_048_576
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + allowance,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    try:
        bytearray(2 * allowance)
    except MemoryError:
        return
    raise RuntimeError("the memory of this process cannot be limited")
