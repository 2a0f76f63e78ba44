"""Memory that is given back: by Python's cyclic garbage collector, and by the allocator of the C library."""

import asyncio
import ctypes
import gc
from asyncio import selector_events, sslproto
from typing import Any, Final

_THRESHOLD: Final = 50_000
"""Threshold of the youngest generation: allocations minus deallocations; 5 to 10 MB."""
COLLECTION_INTERVAL_S: Final = 120.0
_MAPPED_BYTES: Final = 131_072
"""Size from which memory is mapped by itself and given back when it is freed; glibc's default."""
_M_MMAP_THRESHOLD: Final = -3
_READ_BYTES: Final = 65_536
"""Size of the buffer of each read, below the half of ``_MAPPED_BYTES``: a stream reader keeps two of them."""
_READERS: Final[tuple[Any, ...]] = (
    getattr(selector_events, "_SelectorSocketTransport", None),
    sslproto.SSLProtocol,
)
"""Classes of asyncio whose ``max_size`` is the size of a read."""
_libc: Final = ctypes.CDLL(None)
# glibc's; other C libraries have none.
_trim: Final = getattr(_libc, "malloc_trim", None)
_set_malloc_option: Final = getattr(_libc, "mallopt", None)


def configure() -> None:
    """Let the collector run rarely, and never over objects that live for the whole process.

    State and turns are free of cycles, so reference counting frees them. At the default threshold of 700 objects the
    collector takes a seventh of the CPU time at full load, and stops a turn for tens of milliseconds with 10,000
    workers. Only lost connections, failed tasks and reloads leave cycles; ``collect_periodically`` frees those.

    Imports and the configuration leave cycles of 2,300 objects, 0.5 MB, which are kept: to find them takes 30 to 50 ms
    of the start.

    Large buffers stay out of the heap. asyncio reads into 256 KiB, which glibc takes from the heap once a block of that
    size was freed, unless its threshold is set. What was kept after a read lay in the middle of such a hole, so another
    read needed another hole: the heap grew by 1.3 MB in 20 minutes of lost connections, and by 0.5 MB with it set.

    Reads are smaller than that: a mapped buffer is unmapped after each read, and every page of the next one is a fault,
    unless the heap happens to have a hole for it. At 240 MB/s these took a sixth to a third of the processor time.
    """
    gc.freeze()
    gc.set_threshold(_THRESHOLD)
    gc.enable()
    if _set_malloc_option is not None:
        _set_malloc_option(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
    for reader in _READERS:
        if hasattr(reader, "max_size"):  # private: another asyncio may lack it
            reader.max_size = _READ_BYTES


async def collect_periodically() -> None:
    """Collect all generations and return free memory to the system every 2 minutes, until cancelled.

    A lost connection leaves 20 to 50 kB and a reload some 40 kB, so an agent whose servers fail twice a minute would
    grow by 5 MB before the threshold is reached. Objects that live longer are made among these: with a collection each
    10 minutes, the heap kept 0.3 MB more after each. glibc keeps the holes between what is in use, 9 MB of 27 after
    80 minutes. A collection takes 4 ms with 10,000 workers, 25 ms on a busy machine, and returning memory less than
    1 ms.
    """
    while True:
        await asyncio.sleep(COLLECTION_INTERVAL_S)
        gc.collect()
        if _trim is not None:
            _trim(0)
