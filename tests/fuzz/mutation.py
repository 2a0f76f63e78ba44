"""Mutations of valid input: of its bytes, and of its grammar (values, keys, lines and words of JSON, text and HTTP)."""

import random
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

HOSTILE_JSON: Final = [
    b"1e999",
    b"-1e999",
    b"NaN",
    b"Infinity",
    b"9" * 400,
    b"-1",
    b"1.5",
    b"null",
    b"true",
    b'"x"',
    b'"\\ud800"',
    b'"\\u0000"',
    b'"*"',
    b'">"',
    b'"' + b"a" * 10_000 + b'"',
    b"[]",
    b"{}",
    b"[" * 5_000,
    b'{"a":' * 5_000,
    b"9007199254740993",
    b"18446744073709551616",
]
HOSTILE_MSGPACK: Final = [
    b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",  # NaN
    b"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00",  # inf
    b"\xcf" + b"\xff" * 8,
    b"\xd3\x80" + b"\x00" * 7,
    b"\x91" * 5_000,
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc7\x0c\xff" + b"\xff" * 12,
    b"\xa2\xff\xfe",
    b"\xa1\x00",
    b"\xc0",
    b"\xc1",
]
HOSTILE_TEXT: Final = [
    b"\n",
    b"\r\n\r\n",
    b"\0",
    b"\xff",
    b"\xe2\x80\xae",
    b'"',
    b"\\",
    b"#",
    b"{",
    b"]",
    b"=",
    b",",
    b"%",
    b"nan",
    b"-inf",
    b"1e400",
    b"\xd9\xa3",  # a digit, but not of ASCII
    b"9" * 5_000,
    b"x" * 300,
]
BYTES_MAX: Final = 16_384
"""Largest mutant: above it only limits of sizes are tested, of which each has a test of its own."""
_TOKEN: Final = re.compile(rb'"(?:[^"\\\n]|\\.)*"|[\w.+:/%-]+|[\[\]{}=]+')
_NESTING_MAX: Final = 1_100
"""Just above the deepest value that the interpreter's stack holds."""


def mutate(rng: random.Random, frame: bytes, words: Sequence[bytes] = ()) -> bytes:
    """Change an input in a few places.

    Args:
        rng: Source of randomness.
        frame: A valid input.
        words: Pieces of other valid inputs.
    """
    data = bytearray(frame)
    for _ in range(rng.randint(1, 4)):
        (_change_token if rng.random() < 0.5 else _change_bytes)(rng, data, words)
    return bytes(data[:BYTES_MAX])


def _change_bytes(rng: random.Random, data: bytearray, words: Sequence[bytes]) -> None:
    """Cut, flip, repeat, insert or overwrite a few bytes."""
    at = rng.randrange(len(data) + 1)
    match rng.randrange(7):
        case 0 if rng.random() < 0.3:
            del data[at:]
        case 1 if data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        case 2:
            data[at:at] = data[at : at + rng.randrange(40)]
        case 3:
            data[at:at] = _piece(rng, words)[:200]
        case 4:
            del data[at : at + rng.randrange(12)]
        case 5:
            data[at:at] = data[at : at + rng.randrange(400)] * rng.randrange(1, 40)
        case _:
            data[at : at + 1] = rng.randbytes(rng.randrange(4))


def _change_token(rng: random.Random, data: bytearray, words: Sequence[bytes]) -> None:
    """Replace, remove, repeat or swap a word, a value or brackets of text."""
    tokens = [found.span() for found in _TOKEN.finditer(data, 0, BYTES_MAX)]
    if not tokens:
        return
    start, end = rng.choice(tokens)
    match rng.randrange(5):
        case 0:
            data[start:end] = _piece(rng, words)
        case 1:
            data[start:end] = data[slice(*rng.choice(tokens))]
        case 2:
            del data[start:end]
        case 3:
            depth, (opened, closed) = rng.randrange(_NESTING_MAX), rng.choice([(b"[", b"]"), (b'{"a":', b"}")])
            data[start:end] = opened * depth + data[start:end] + closed * depth
        case _:
            other_start, other_end = rng.choice(tokens)
            data[start:end] = data[min(start, other_start) : max(end, other_end)]


def _piece(rng: random.Random, words: Sequence[bytes]) -> bytes:
    kinds: list[Sequence[bytes]] = [HOSTILE_JSON, HOSTILE_MSGPACK, HOSTILE_TEXT]
    return rng.choice(words if words and rng.random() < 0.5 else rng.choice(kinds))


def words_of(inputs: Sequence[bytes]) -> list[bytes]:
    """Return the words, values and lines of inputs, each once."""
    found: dict[bytes, None] = {}
    for one in inputs:
        found |= dict.fromkeys(_TOKEN.findall(one[:BYTES_MAX]))
        found |= dict.fromkeys(line + b"\n" for line in one[:BYTES_MAX].split(b"\n"))
    return list(found)


def grow(rng: random.Random, fields: Sequence[str], texts: Sequence[str], depth: int = 0) -> Any:
    """Return a random value that JSON and MessagePack can write, of real field names and texts among others."""
    leaves: list[object] = [
        *(-1, 0, 1, 2**53, 2**53 + 1, 2**63, 2**64 - 1),
        *(0.0, -0.0, 1e308, -1.5, float("nan"), float("inf")),
        *("", *texts, "\x00", "a" * 300, "*", ">", "\u202e", "done", rng.randbytes(3).hex()),
        *(None, True, False),
    ]
    match rng.randrange(6 if depth < 3 else 4):
        case 4:
            return [grow(rng, fields, texts, depth + 1) for _ in range(rng.randrange(4))]
        case 5:
            return {rng.choice(fields): grow(rng, fields, texts, depth + 1) for _ in range(rng.randrange(6))}
        case _:
            return rng.choice(leaves)


def regrown(rng: random.Random, message: bytes) -> bytes:
    """Return a message of JSON with some values replaced by random ones, in either encoding."""
    body = msgspec.json.decode(message)
    places = [(holder, key) for holder in _holders(body) for key in _keys(holder)]
    names = sorted({key for _, key in places if isinstance(key, str)})
    for holder, key in rng.sample(places, min(len(places), rng.randint(1, 3))):
        holder[key] = grow(rng, [*names, "x"], names)
    return (msgspec.json.encode if rng.random() < 0.5 else msgspec.msgpack.encode)(body)


def _holders(value: Any) -> list[Any]:
    """Return a value and all that it holds, as far as they are lists or objects."""
    if not isinstance(value, dict | list):
        return []
    inner = value.values() if isinstance(value, dict) else value
    return [value, *(found for one in inner for found in _holders(one))]


def _keys(holder: Any) -> list[Any]:
    return list(holder) if isinstance(holder, dict) else list(range(len(holder)))
