"""Journal on disk: JSON Lines in segments, each begun by a snapshot, written by a separate thread.

A slow disk fills a bounded queue and a full queue ends the segment: records count as lost until a new segment begins.
The event loop never waits for the disk. No segment has a gap, so a replay can start at any of them; a chain of
checksums shows a record that was changed or removed later.
"""

import contextlib
import functools
import itertools
import operator
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from loadline.adapters.journal_checksums import ADDED_BYTES, ChecksumChain
from loadline.adapters.journal_segments import folders_of_shards, lock_folder, next_name, segments_in
from loadline.adapters.logs import bounded
from loadline.errors import JournalError

_log = bounded("journal")

# Records that wait for a slow disk: about a minute of turns at 1,000 workers.
_QUEUE_BYTES_MAX = 32 * 2**20
# Parts of lines in a call, which Linux allows. They are not joined first: the copy of a turn's record of 170 KB takes
# 0.1 ms, half of the writer's time, and that of a snapshot of 10,000 workers (6 MB) 3 ms, in which no other thread runs
# Python.
_PARTS_MAX = 1_024
_RETRY_S = 10.0
# Time for which records of turns without effects wait for others. A process that is killed loses those of this time. At
# 200 turns/s, a wake-up of the writer for each turn took a quarter of the agent's processor time.
_GATHER_S = 0.05
_CLOSE_S = 5.0
# A snapshot of 20,000 workers is about 10 MB.
_PROGRESS_BYTES = 2**15
_LINE_BYTES_MAX = 256 * 2**20
_GZIP: Final = b"\x1f\x8b"


class FileJournal:
    """A ``ports.Journal`` in a folder of its own, which is created if it does not exist.

    Args:
        directory: The folder.
        segment_bytes_max: Size at which a new segment is due.
        bytes_max: Size of all segments above which the oldest are deleted.
        queue_bytes_max: Maximum size of the records that wait to be written.
        retry_s: Time after a failure at which a new segment is due.

    Raises:
        JournalError: Another agent writes to the folder.
    """

    def __init__(
        self,
        directory: Path,
        segment_bytes_max: int,
        bytes_max: int,
        *,
        queue_bytes_max: int = _QUEUE_BYTES_MAX,
        retry_s: float = _RETRY_S,
    ) -> None:
        self._segment_bytes_max = segment_bytes_max
        self._queue_bytes_max = queue_bytes_max
        self._retry_s = retry_s
        self._changed = threading.Condition()  # guards all attributes below
        self._segment = 0  # number of the newest segment; 0: none yet
        self._segment_bytes = 0  # of its records
        self._snapshot_bytes = 0  # of its first record, once that is encoded
        self._open = False  # True while the newest segment accepts records
        self._retry_at_s = time.monotonic()
        self._queue: list[tuple[int, bytes | Callable[[], bytes]]] = []  # segment, and record or its encoder
        self._queued_bytes = 0
        self._lost = 0
        self._closing = False
        self._urgent = threading.Event()  # set if what is queued must not wait
        self._folder = _Folder(directory, bytes_max, segment_bytes_max)
        self._writer = threading.Thread(target=self._run, args=(self._folder,), daemon=True)
        self._writer.start()

    @property
    def wants_snapshot(self) -> bool:
        """True when a new segment is due: the next append must be a snapshot."""
        if self._open:
            # A snapshot that is larger than a segment would otherwise begin the next one in every turn.
            size = max(self._segment_bytes_max - self._snapshot_bytes, self._snapshot_bytes)
            return self._segment_bytes >= size
        return time.monotonic() >= self._retry_at_s

    @property
    def lost(self) -> int:
        """Number of records that could not be written."""
        return self._lost

    def append(self, record: bytes, *, at_once: bool = False) -> None:
        """Append one record: a JSON object without a newline. It waits for 50 ms for others, unless ``at_once``."""
        with self._changed:
            if self._open:
                self._put(record)
                if at_once:
                    self._urgent.set()
            else:
                self._lost += 1

    def begin(self, snapshot: Callable[[bool], bytes]) -> None:
        """Begin a new segment with the result of ``snapshot``, called with True if it continues the previous segment.

        The writer's thread calls ``snapshot`` later. If pending records of the previous segment cannot be written, the
        new segment is given up too.
        """
        with self._changed:
            if self._closing:
                self._lost += 1
                return
            continues = self._open  # a segment that has lost a record accepts no more
            self._segment += 1
            self._segment_bytes = self._snapshot_bytes = 0
            self._open = True
            self._queue.append((self._segment, functools.partial(snapshot, continues)))
            self._queued_bytes += ADDED_BYTES  # the snapshot itself is counted once it is encoded
            self._changed.notify()

    def close(self) -> None:
        """Write the pending records, for at most 5 s."""
        with self._changed:
            self._open, self._closing = False, True
            self._urgent.set()
            self._changed.notify()
        self._writer.join(_CLOSE_S)
        self._folder.unlock()

    def _put(self, record: bytes) -> None:
        """Queue a record, or end the segment if the queue is full: records after a gap cannot be replayed."""
        size = len(record) + ADDED_BYTES
        if self._queued_bytes + size > self._queue_bytes_max:
            self._end("the disk is too slow", lost=1)
            return
        self._queue.append((self._segment, record))
        self._queued_bytes += size
        self._segment_bytes += size
        self._changed.notify()

    def _end(self, why: str, lost: int) -> None:
        """End the segment, and count the lost records."""
        self._lost += lost
        self._open = False
        self._retry_at_s = time.monotonic() + self._retry_s
        _log.warning("journal_stopped", why=why, lost=self._lost, retry_s=self._retry_s)

    def _run(self, folder: "_Folder") -> None:
        """Write queued records until the journal is closed."""
        broken = 0  # the last segment that accepts no more writes
        with contextlib.closing(folder):
            while batch := self._pop_batch():
                for segment, group in itertools.groupby(batch, operator.itemgetter(0)):
                    records = [self._encoded(segment, record) for _, record in group]
                    written, problem = 0, ""
                    if segment > broken:
                        written, problem = folder.write(segment, records)
                    with self._changed:
                        lost = len(records) - written
                        if problem:
                            broken = self._segment  # a segment that began meanwhile continues a lost one
                        if problem and self._open:
                            self._end(problem, lost)
                        else:
                            self._lost += lost
                        self._queued_bytes -= sum(map(len, records)) + ADDED_BYTES * len(records)

    def _encoded(self, segment: int, record: bytes | Callable[[], bytes]) -> bytes:
        """Return a record; a snapshot is encoded and counted only now."""
        if isinstance(record, bytes):
            return record
        encoded = record()
        with self._changed:
            self._queued_bytes += len(encoded)
            if segment == self._segment:
                self._snapshot_bytes = len(encoded) + ADDED_BYTES
        return encoded

    def _pop_batch(self) -> list[tuple[int, bytes | Callable[[], bytes]]]:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
        if not self._closing:
            self._urgent.wait(_GATHER_S)
        with self._changed:
            self._urgent.clear()
            batch, self._queue = self._queue, []
            return batch


class _Folder:
    """Segment files of the writer, in a folder that it locks.

    Args:
        directory: The folder.
        bytes_max: Size of all segments above which the oldest are deleted.
        segment_bytes_max: Size to keep free for a new one; it gets larger if its snapshot is.

    Raises:
        JournalError: Another agent writes to the folder.
    """

    def __init__(self, directory: Path, bytes_max: int, segment_bytes_max: int) -> None:
        self._directory = directory
        self._bytes_max, self._segment_bytes_max = bytes_max, segment_bytes_max
        self._lock = -1
        with contextlib.suppress(OSError):  # the first write tries again, and logs the reason
            self._lock = lock_folder(directory)
        self._segment = 0
        self._path = directory
        self._file = -1
        self._file_bytes = 0
        self._others_bytes = 0  # size of the other segments
        self._checksums = ChecksumChain()

    def write(self, segment: int, records: list[bytes]) -> tuple[int, str]:
        """Write records to a segment, creating it; return the number of complete ones on disk, and the error or ''."""
        begins = segment != self._segment
        try:
            if begins:
                self._begin(segment)
            elif not os.path.samestat(os.fstat(self._file), self._path.stat()):
                return 0, f"{self._path} was replaced"
        except FileNotFoundError:
            return 0, f"{self._path} was removed"  # records written to it would be lost
        except (OSError, JournalError) as error:
            return 0, str(error)
        done = 0
        left = [part for record in records for part in self._checksums.seal(record)]
        needed = self._file_bytes + sum(map(len, left))
        try:
            if self._others_bytes + needed > self._bytes_max:
                self._delete_oldest(segments_in(self._directory)[:-1], self._bytes_max - needed)
            while left:
                written = os.writev(self._file, left[:_PARTS_MAX])
                done, left = done + written, _unwritten(left, written)
        except OSError as error:
            ends = itertools.accumulate(len(record) + ADDED_BYTES for record in records)
            whole = [end for end in ends if end <= done]
            with contextlib.suppress(OSError):  # a torn last record does no harm
                os.ftruncate(self._file, self._file_bytes + (whole[-1] if whole else 0))
            return len(whole), str(error)  # nothing more is written to this segment
        self._file_bytes += done
        return len(records), ""

    def close(self) -> None:
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = -1

    def unlock(self) -> None:
        """Let another agent write to the folder."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _begin(self, segment: int) -> None:
        self.close()
        if self._lock < 0:
            self._lock = lock_folder(self._directory)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        segments = segments_in(self._directory)
        self._delete_oldest(segments, self._bytes_max - self._segment_bytes_max)
        self._path = self._directory / next_name(segments[-1].name if segments else "")
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._segment = segment
        self._file_bytes = 0
        self._checksums = ChecksumChain()

    def _delete_oldest(self, segments: list[Path], keep_bytes: int) -> None:
        sizes = [path.stat().st_size for path in segments]
        total = sum(sizes)
        for path, size in zip(segments, sizes, strict=True):
            # A full disk leaves empty segments.
            if total <= keep_bytes and size:
                continue
            path.unlink()
            total -= size
        self._others_bytes = total
        if any(sizes) and not total:
            _log.warning(
                "journal_too_small",
                detail=f"{self._directory}: all before the newest segment is deleted, as one had {max(sizes)} bytes",
                remedy="Raise journal.bytes_max to eight times that, multiplied by the number of shards.",
            )


def _unwritten(parts: list[bytes | memoryview], written: int) -> list[bytes | memoryview]:
    """Return what is left of parts after so many bytes."""
    for number, part in enumerate(parts):
        if written < len(part):
            return [memoryview(part)[written:], *parts[number + 1 :]]
        written -= len(part)
    return []


OnTorn = Callable[[Path, int], None]
OnProgress = Callable[[float, float], None]
"""Takes the size of what has been read of some segments, and the size of all, in MB."""
_Segment = tuple[Path, Iterator[bytes]]
_MB: Final = 1_000_000


def read_segments(path: Path, on_torn: OnTorn = lambda _segment, _records: None) -> Iterator[_Segment]:
    """Read the segments in order, each with its records; a torn last record is left out.

    Args:
        path: A journal's folder, or one segment.
        on_torn: Called with a segment whose last record is torn, and the number of whole records before it.

    Raises:
        JournalError: There is nothing to read.
    """
    try:
        paths = segments_in(path) if path.is_dir() else [path]
        if not paths or not paths[0].is_file():
            raise JournalError(_no_journal(path))
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {error}") from error
    return ((segment, _records(segment, on_torn)) for segment in paths)


def _no_journal(path: Path) -> str:
    folders = folders_of_shards(path) if path.is_dir() else []
    if folders:
        return f"{path} has a journal for each of {len(folders)} shards. Name the folder of one, such as {folders[0]}"
    return f"{path} is neither a segment of a journal nor a folder with some. Name the agent's `journal.directory`"


def no_progress(_done_mb: float, _total_mb: float) -> None:
    """Report nothing."""


def with_progress(segments: Sequence[_Segment], on_progress: OnProgress) -> Iterator[_Segment]:
    """Yield segments, and report the progress over all of them while their records are read."""
    sizes = [_size_bytes(segment) for segment, _ in segments]
    for number, (segment, records) in enumerate(segments):
        yield segment, _counted(records, sum(sizes[:number]), sum(sizes), on_progress)


def _counted(records: Iterator[bytes], read_bytes: int, total_bytes: int, on_progress: OnProgress) -> Iterator[bytes]:
    reported_bytes = 0
    for record in records:
        if read_bytes - reported_bytes >= _PROGRESS_BYTES:
            reported_bytes = read_bytes
            on_progress(min(read_bytes, total_bytes) / _MB, total_bytes / _MB)
        yield record
        read_bytes += len(record)


def _size_bytes(segment: Path) -> int:
    try:
        return segment.stat().st_size
    except OSError:  # its agent has deleted it; reading it names that
        return 0


def _records(segment: Path, on_torn: OnTorn) -> Iterator[bytes]:
    try:
        checksums = ChecksumChain()
        with segment.open("rb") as lines:
            # A crash of the machine can leave a line without its end, or a hole of NULs: neither is in JSON.
            number = 0
            if lines.peek(2)[:2] == _GZIP:
                raise JournalError(f"{segment} is compressed: unpack it with gunzip first")
            while (line := lines.readline(_LINE_BYTES_MAX)).endswith(b"\n") and b"\0" not in line:
                number += 1
                try:
                    yield checksums.open(line[:-1])
                except ValueError as error:
                    raise JournalError(f"{segment}, record {number}: {error}") from error
            left_bytes = len(line.rpartition(b"\0")[2].strip()) + len(lines.read(_LINE_BYTES_MAX).strip(b"\0"))
            if b"\0" in line and left_bytes:
                raise JournalError(
                    f"{segment}: damaged after record {number}: {left_bytes} bytes behind it are not read"
                )
            if not number and not line:
                raise JournalError(f"{segment} is empty")
            if line:
                on_torn(segment, number)
    except OSError as error:
        raise JournalError(f"{segment} cannot be read: {error}") from error
