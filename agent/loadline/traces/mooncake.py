"""Mooncake traces: JSON Lines with the cache block ids of every prompt."""

from collections.abc import Iterator
from itertools import chain
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from loadline.traces.line_reader import LineReader, excerpt
from loadline.traces.requests import check_arrival
from loadline.traces.trace import PREFIX_BLOCK_TOKENS, Arrival

_BlockId = Annotated[int, Meta(ge=0, le=2**53)]


class _Line(Struct, gc=False):
    timestamp: float  # ms from the start
    input_length: int
    output_length: int
    hash_ids: tuple[_BlockId, ...] = ()


def json_rows(lines: LineReader, first: str) -> Iterator[Arrival]:
    """Yield requests, one per line, sorted by ``timestamp`` (ms).

    ``hash_ids`` name the prompt's blocks of 512 tokens, of which the last may be partial. Times are as recorded; the
    published conversations have a resolution of 3 s.

    Args:
        lines: The lines after the first.
        first: The first line.

    Raises:
        DataError: A line is wrong.
    """
    decoder = msgspec.json.Decoder(_Line)
    before_s = float("-inf")
    for text in chain([first], lines):
        if text.isspace():
            continue
        try:
            line = decoder.decode(text)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            problem = f"{excerpt(text)} is not a request ({excerpt(str(error))})"
            raise lines.error(problem, "Write timestamp, input_length, output_length and hash_ids.") from error
        one = Arrival(line.timestamp / 1_000, line.input_length, line.output_length, line.hash_ids)
        check_arrival(lines, one, before_s)
        blocks = -(-one.isl_tokens // PREFIX_BLOCK_TOKENS)
        if len(one.prefix) > blocks:
            problem = f"{len(one.prefix)} hash_ids, but {one.isl_tokens} tokens are {blocks} blocks"
            raise lines.error(problem, f"Name blocks of {PREFIX_BLOCK_TOKENS} tokens.")
        before_s = one.arrival_s
        yield one
