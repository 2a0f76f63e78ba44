"""Prefix cache of a worker: leading blocks of prompts with LRU eviction."""

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """Blocks by id. An id stands for its block and all blocks before it, as in published traces.

    Args:
        blocks_max: Capacity in blocks.
        block_tokens: Tokens in a block.
    """

    def __init__(self, blocks_max: int, block_tokens: int) -> None:
        self._blocks_max = blocks_max
        self._block_tokens = block_tokens
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def hit_tokens(self, prefix: Sequence[int]) -> int:
        """Return the tokens of the leading blocks in the cache, without a change to it."""
        hits = 0
        for block in prefix:
            if block not in self._blocks:
                break
            hits += 1
        return hits * self._block_tokens

    def insert(self, prefix: Sequence[int]) -> None:
        """Insert the blocks of a prompt. The last ones age first, as they are useless without the first ones."""
        for block in reversed(prefix):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._blocks_max:
            self._blocks.popitem(last=False)
