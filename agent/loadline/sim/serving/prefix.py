"""A worker's prefix cache: the leading blocks of prompts that it remembers. The least recently used go first."""

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """Blocks by their ids. An id stands for its block and all that come before it, as in published traces.

    Args:
        blocks_max: Blocks that are remembered.
        block_tokens: Tokens in a block.
    """

    def __init__(self, blocks_max: int, block_tokens: int) -> None:
        self._blocks_max = blocks_max
        self._block_tokens = block_tokens
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def hit_tokens(self, prefix: Sequence[int]) -> int:
        """Tokens of the leading blocks that are there; changes nothing."""
        hits = 0
        for block in prefix:
            if block not in self._blocks:
                break
            hits += 1
        return hits * self._block_tokens

    def insert(self, prefix: Sequence[int]) -> None:
        """All blocks of a prompt were just used. The last ones age first: without the first ones they are of no use."""
        for block in reversed(prefix):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._blocks_max:
            self._blocks.popitem(last=False)
