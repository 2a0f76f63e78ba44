"""Tokens and output of simulated engines: a token is a byte of UTF-8, and output depends on all tokens before it.

A stream that another engine resumes, with prompt and output so far as its prompt, therefore equals an unbroken one.
"""

from collections.abc import Iterator, Sequence
from typing import Final

VOCABULARY: Final = 256
_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyz ,.-:\n"
"""Output alphabet: 32 letters of one byte, so that text and tokens convert into each other without loss."""
_MASK: Final = (1 << 64) - 1


def tokens_of(text: str) -> list[int]:
    """Return the tokens of a text."""
    return list(text.encode())


def text_of(tokens: Sequence[int]) -> str:
    """Return the text of tokens."""
    return bytes(tokens).decode(errors="replace")


def output_of(prompt: Sequence[int], tokens_max: int, tokens_mean: int | None) -> tuple[list[int], bool]:
    """Return the output after a prompt, and whether it ends by itself instead of at ``tokens_max``.

    Args:
        prompt: Tokens of the prompt.
        tokens_max: Maximum length.
        tokens_mean: Mean length of an output that ends by itself; None: none does.
    """
    output = []
    for token, draw in _continuation(prompt):
        output.append(token)
        if tokens_mean is not None and draw % tokens_mean == 0:
            return output, True
        if len(output) >= tokens_max:
            break
    return output, False


def block_ids(tokens: Sequence[int], block_tokens: int) -> list[int]:
    """Return the ids of the whole blocks of tokens, each for its block and all before it."""
    ids: list[int] = []
    for end in range(block_tokens, len(tokens) + 1, block_tokens):
        ids.append(hash((ids[-1] if ids else 0, *tokens[end - block_tokens : end])))
    return ids


def _continuation(prompt: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield each next token, with a pseudo-random number of the same state."""
    state = 0
    for token in prompt:
        state = _absorb(state, token)
    while True:
        mixed = state ^ (state >> 31)
        mixed = mixed * 0x9E3779B97F4A7C15 & _MASK
        mixed ^= mixed >> 29
        token = _LETTERS[mixed % len(_LETTERS)]
        yield token, mixed >> 5
        state = _absorb(state, token)


def _absorb(state: int, token: int) -> int:
    return (state * 0x5851F42D4C957F2D + token + 1) & _MASK
