"""Paged attention on a CPU in PyTorch. Knows dtypes and memory orders; knows no Triton.

plan.py              decodes as embedding bags or SDPA, prompts one by one
embedding_bags.py    decodes of a step in two calls of `torch.embedding_bag`
prefill_tiles.py     bf16 prompts in tiles
gather.py            a sequence's keys and values, gathered from their blocks
invariant_plan.py    attention whose bits do not depend on the batch
invariant_tiles.py   the tiles that it computes in
"""
