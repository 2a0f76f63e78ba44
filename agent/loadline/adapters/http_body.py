"""Bodies of HTTP answers with aiohttp, bounded in size."""

import aiohttp

from loadline.errors import LoadlineError


class BodyTooLarge(LoadlineError):
    """A body with more bytes than its reader takes."""


async def read_body(answer: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """Return the body of an answer.

    Raises:
        BodyTooLarge: It has more than ``bytes_max`` bytes; the rest is not read.
    """
    parts, size = [], 0
    async for part in answer.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > bytes_max:
            parts.clear()  # the traceback of the error would hold them
            answer.close()
            raise BodyTooLarge(f"more than {bytes_max:,} bytes")
    return b"".join(parts)
