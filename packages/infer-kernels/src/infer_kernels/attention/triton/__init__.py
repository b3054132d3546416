"""Paged attention in Triton. Knows work lists and device memory; knows no CPU.

plan.py             launches: one per phase and layer
paged_decode.py     the kernel of decodes, in splits of a fixed length
paged_prefill.py    the kernel of prefill chunks, in tiles of queries
online_softmax.py   the loop over keys that both kernels share
work_lists.py       what each program of a launch computes
plan_memory.py      where a plan's metadata lies on the device
tile_configs.py     tile shapes by model and device
"""
