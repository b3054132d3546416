"""The blocks that tokens attend to where attention has a sliding window.

blocks      0    1    2    3    4    5        tokens `>` from position p on attend to themselves
tokens    ....|....|..<<|<<<<|>>>>|>>         and to the `window - 1` tokens `<` before p: blocks 0 and 1 can be freed
"""


def first_block_in_window(first_position: int, *, window: int | None, block_size: int) -> int:
    """Return the first block that tokens from `first_position` on attend to; without a window, block 0."""
    return 0 if window is None else max(0, first_position - window + 1) // block_size


def max_blocks_in_window(num_tokens: int, *, window: int | None, max_chunk: int | None, block_size: int) -> int:
    """Return the most blocks that a sequence of `num_tokens` tokens has at a time.

    Args:
        num_tokens: prompt and generated tokens.
        window: sliding window of the layers, in tokens; None keeps all blocks.
        max_chunk: most tokens of a sequence that one step computes; None: all of them.
        block_size: tokens of a block.
    """
    num_blocks = -(-num_tokens // block_size)
    if window is None or max_chunk is None:
        return num_blocks
    return min(num_blocks, -(-(window - 1 + max_chunk) // block_size) + 1)
