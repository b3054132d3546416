"""Which blocks a sliding window reaches. Knows positions and block sizes; knows no sequence and no block id.

blocks      0    1    2    3    4    5        a chunk of tokens `>` from position p on, with a window, reads
tokens    ....|....|..<<|<<<<|>>>>|>>         the window - 1 tokens `<` before p: blocks 0 and 1 can go
"""


def first_block_in_window(first_position: int, *, window: int | None, block_size: int) -> int:
    """Return the first block that tokens from `first_position` on attend to; None is a window without an end."""
    return 0 if window is None else max(0, first_position - window + 1) // block_size


def max_blocks_in_window(num_tokens: int, *, window: int | None, max_chunk: int | None, block_size: int) -> int:
    """Return the most blocks that a sequence of `num_tokens` tokens holds at a time.

    Args:
        num_tokens: prompt and generated tokens.
        window: of the layers that the blocks are for; None keeps all blocks.
        max_chunk: most tokens that are computed in one step; None: all of them.
        block_size: tokens of a block.
    """
    whole = -(-num_tokens // block_size)
    if window is None or max_chunk is None:
        return whole
    return min(whole, -(-(window - 1 + max_chunk) // block_size) + 1)
