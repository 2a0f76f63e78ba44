"""Chained checksums of a segment's records.

The last field of each record is ``crc32``: the CRC-32 of all bytes before it in the segment, the other checksums left
out. A changed byte, a removed record and a changed order all break the chain. It is no signature: a process that may
write the file can also compute new checksums.
"""

import re
import zlib
from typing import Final

_FIELD: Final = re.compile(rb',"crc32":"[0-9a-f]{8}"}')
_FIELD_BYTES: Final = len(b',"crc32":"01234567"}')
ADDED_BYTES: Final = _FIELD_BYTES
"""Length of the field and the newline, less the closing brace that they replace."""


class ChecksumChain:
    """Checksums of one segment, from its first record on."""

    def __init__(self) -> None:
        self._crc = 0

    def seal(self, record: bytes) -> tuple[memoryview, bytes]:
        """Return the two parts of a record's line, without a copy of the record: its fields, and the checksum."""
        fields = memoryview(record)[:-1]
        return fields, self._field(fields) + b"\n"

    def open(self, line: bytes) -> bytes:
        """Return the record of a line without its newline.

        Raises:
            ValueError: The line has no checksum, or another one.
        """
        fields, field = line[:-_FIELD_BYTES], line[-_FIELD_BYTES:]
        if _FIELD.fullmatch(field) is None:
            raise ValueError("the record has no checksum: an older loadline wrote it, or its end was changed")
        if self._field(fields) != field:
            raise ValueError("the checksum is wrong: this record was changed, or one before it was removed")
        return fields + b"}"

    def _field(self, fields: bytes | memoryview) -> bytes:
        self._crc = zlib.crc32(fields, self._crc)
        return b',"crc32":"%08x"}' % self._crc
