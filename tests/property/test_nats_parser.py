"""Equivalence of the fast NATS parser and the library's parser, for any split of the stream."""

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

from loadline.adapters.nats_client import _one_by_one
from loadline.adapters.nats_parser import _REST_BYTES_MAX, FrameParser
from loadline.ports import FrameHandler, FramesHandler

TAKEN = (1, 3)


class Reader:
    """Stand-in for the client of a parser, which records the calls of the parser in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.takers = {sid: self._handler(sid) for sid in TAKEN}

    @property
    def handlers(self) -> dict[int, FramesHandler]:
        return {sid: _one_by_one(take) for sid, take in self.takers.items()}

    def _handler(self, sid: int) -> FrameHandler:
        def take(subject: str, data: bytes) -> None:
            if data == b"bad":
                raise ValueError(subject)
            self.seen.append((sid, subject, data))

        return take

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        if sid not in TAKEN:
            self.seen.append((sid, subject.decode(), bytes(reply), data, headers))
            return
        try:
            self.takers[sid](subject.decode(), data)
        except ValueError as error:
            await self._error_cb(error)

    async def _error_cb(self, error: Exception) -> None:
        self.seen.append(("error", str(error)))

    async def _process_ping(self) -> None:
        self.seen.append(("ping",))

    async def _process_pong(self) -> None:
        self.seen.append(("pong",))


def read(parser: Parser, chunks: Iterable[bytes]) -> None:
    async def run() -> None:
        for chunk in chunks:
            await parser.parse(chunk)

    asyncio.run(run())


def parse_fast(chunks: Iterable[bytes]) -> list[tuple[Any, ...]]:
    reader = Reader()
    read(FrameParser(cast("Client", reader), reader.handlers, {}), chunks)
    return reader.seen


def parse_with_library(chunks: Iterable[bytes]) -> list[tuple[Any, ...]]:
    reader = Reader()
    read(Parser(reader), chunks)
    return reader.seen


def message(sid: int, reply: str, data: bytes) -> bytes:
    return f"MSG load.{sid} {sid} {reply + ' ' if reply else ''}{len(data)}\r\n".encode() + data + b"\r\n"


payloads = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"bad", b"\r\n", b"MSG a 1 2\r\n", b"x" * 300, b"y" * (_REST_BYTES_MAX + 10)]),
)
operations = st.one_of(
    st.builds(message, st.integers(1, 4), st.sampled_from(["", "_INBOX.a"]), payloads),
    st.sampled_from([b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"HMSG load.1 1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"]),
)


@given(st.lists(operations, max_size=12), st.data())
def test_both_parsers_return_the_same_messages(written: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(written)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    # Errors are reported after the frames of a read, so the order of frames and errors may differ.
    assert sorted(map(repr, parse_fast(chunks))) == sorted(map(repr, parse_with_library([stream])))
    frames = [seen for seen in parse_fast(chunks) if seen[0] != "error"]
    assert frames == [seen for seen in parse_with_library([stream]) if seen[0] != "error"]


def test_messages_are_parsed_byte_by_byte() -> None:
    stream = message(1, "", b"one") + b"PING\r\n" + message(2, "r", b"two") + message(3, "", b"")
    expected = [(1, "load.1", b"one"), ("ping",), (2, "load.2", b"r", b"two", None), (3, "load.3", b"")]
    assert parse_fast(stream[i : i + 1] for i in range(len(stream))) == expected


@pytest.mark.parametrize("line", [b"MSG a\r\n", b"MSG a 1 -9\r\n", b"MSG a 1 x\r\n", b"MSG a one 1\r\n"])
def test_malformed_lines_end_the_connection_as_in_the_library(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_fast([message(1, "", b"fine") + line])


@pytest.mark.parametrize("read", [32_768, 32_767, 100])
def test_input_that_can_wait_is_read_at_a_bounded_rate(read: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    reader, stream = Reader(), message(1, "", b"query") * 3_000
    parser = FrameParser(cast("Client", reader), reader.handlers, {}, read_pause_s=0.01)
    chunks = [stream[at : at + read] for at in range(0, len(stream), read)]

    async def run() -> None:
        for chunk in chunks:
            await parser.parse(chunk)

    asyncio.run(run())
    assert pauses == [0.01] * len(chunks), "bursts that leave a read short of full are no way around the pause"


def test_a_new_connection_starts_with_an_empty_parser() -> None:
    reader = Reader()
    parser = FrameParser(cast("Client", reader), reader.handlers, {})
    read(parser, [message(1, "", b"cut off")[:-4]])
    parser.reset()
    read(parser, [message(1, "", b"whole")])
    assert reader.seen == [(1, "load.1", b"whole")]
