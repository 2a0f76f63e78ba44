"""Prompts of a wanted length that no prefix cache knows."""

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

Prompt = list[int] | str

_LOW: Final = 32
_HIGH: Final = 127
"""Tokens 32 to 126: single characters in every vocabulary; special tokens lie elsewhere."""
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_WORD: Final = 4


class PromptSource(Protocol):
    """Source of prompts."""

    def fresh(self, tokens: int) -> Prompt:
        """Return a prompt that differs from all before in its first block."""
        ...

    def partly_shared(self, tokens: int, shared: int) -> Prompt:
        """Return a prompt whose first ``shared`` tokens are those of every such prompt."""
        ...

    def longer(self, prompt: Prompt, tokens: int) -> Prompt:
        """Return a prompt with ``tokens`` more."""
        ...


class TokenPrompts:
    """Prompts of random token ids."""

    def __init__(self) -> None:
        self._random = np.random.default_rng()
        self._shared: list[int] = []

    def fresh(self, tokens: int) -> Prompt:
        """Implement ``PromptSource``."""
        return self._draw(tokens)

    def partly_shared(self, tokens: int, shared: int) -> Prompt:
        """Implement ``PromptSource``."""
        self._shared += self._draw(shared - len(self._shared))
        return self._shared[:shared] + self._draw(tokens - shared)

    def longer(self, prompt: Prompt, tokens: int) -> Prompt:
        """Implement ``PromptSource``."""
        return [*prompt, *self._draw(tokens)]

    def _draw(self, tokens: int) -> list[int]:
        found: list[int] = self._random.integers(_LOW, _HIGH, max(tokens, 0)).tolist()
        return found


class TextPrompts:
    """Prompts of random words, for engines that accept no token ids.

    Args:
        tokens_per_word: Tokens that the engine counts for a word.
        tokens_extra: Tokens that the engine adds to each prompt, such as those of a chat template.
    """

    def __init__(self, tokens_per_word: float = 1.0, tokens_extra: float = 0.0) -> None:
        self._tokens_per_word = tokens_per_word
        self._tokens_extra = tokens_extra
        self._random = np.random.default_rng()
        self._shared: list[str] = []

    def fresh(self, tokens: int) -> Prompt:
        """Implement ``PromptSource``."""
        return " ".join(self._words(self._count(tokens)))

    def partly_shared(self, tokens: int, shared: int) -> Prompt:
        """Implement ``PromptSource``."""
        count, first = self._count(tokens), self._count(shared)
        self._shared += self._words(first - len(self._shared))
        return " ".join([*self._shared[:first], *self._words(count - first)])

    def longer(self, prompt: Prompt, tokens: int) -> Prompt:
        """Implement ``PromptSource``."""
        return " ".join([str(prompt), *self._words(round(tokens / self._tokens_per_word))])

    def _count(self, tokens: int) -> int:
        return max(round((tokens - self._tokens_extra) / self._tokens_per_word), 1)

    def _words(self, count: int) -> list[str]:
        drawn: NDArray[np.int64] = self._random.integers(0, len(_LETTERS), (max(count, 0), _WORD))
        return ["".join(_LETTERS[letter] for letter in word) for word in drawn.tolist()]
