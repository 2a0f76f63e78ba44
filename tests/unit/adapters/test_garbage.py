"""Cyclic garbage of a process whose collector hardly runs by itself, and memory of reads."""

import asyncio
import ctypes
import gc
import subprocess
import sys
import weakref

import pytest

from loadline.adapters.garbage import COLLECTION_INTERVAL_S, collect_periodically
from tests.support.virtual_time import run_virtual

_COUNT_MAPPED = """
import ctypes

from loadline.adapters import garbage


class Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")] + [
        ("others", ctypes.c_size_t * 5)
    ]


mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Mallinfo2
garbage.configure()
bytes(400_000)  # glibc takes smaller blocks from the heap once this is freed, if its threshold is not set
before = mallinfo2().hblks
buffer = bytes(262_144)
print(mallinfo2().hblks - before)
"""

_COUNT_FAULTS = """
import asyncio
import resource
import socket

from loadline.adapters import garbage

SENT_MB = 16


async def read_all():
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    reader, _ = await asyncio.open_connection(sock=ours, limit=32_768)
    sent = bytes(1_000_000)

    async def send():
        for _ in range(SENT_MB):
            await asyncio.get_running_loop().sock_sendall(theirs, sent)
        theirs.close()

    sending = asyncio.create_task(send())
    await reader.read(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    while await reader.read(32_768):
        pass
    await sending
    print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // SENT_MB)


garbage.configure()
asyncio.run(read_all())
"""
FAULTS_PER_MB_MAX = 50
"""12 are usual; with a buffer that is mapped for each read, there is one for each of 244 pages."""


class Connection:
    """Something that a lost connection leaves: it refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def test_cycles_are_freed_although_the_collector_does_not_run_by_itself() -> None:
    async def leave_a_cycle_and_wait() -> list[bool]:
        collecting = asyncio.create_task(collect_periodically())
        left = weakref.ref(Connection())
        alive = []
        for wait_s in (COLLECTION_INTERVAL_S - 1.0, 2.0):
            await asyncio.sleep(wait_s)
            alive.append(left() is not None)
        collecting.cancel()
        return alive

    gc.disable()
    try:
        assert run_virtual(leave_a_cycle_and_wait()) == [True, False]
    finally:
        gc.enable()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33 or newer")
def test_a_read_buffer_is_mapped_and_leaves_no_hole_in_the_heap() -> None:
    done = subprocess.run([sys.executable, "-c", _COUNT_MAPPED], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33 or newer")
def test_reading_maps_no_memory() -> None:
    done = subprocess.run([sys.executable, "-c", _COUNT_FAULTS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < FAULTS_PER_MB_MAX
