"""Paged attention in Triton. Knows work lists and device memory; knows no CPU.

plan.py                launches: one per phase and layer
paged_decode.py        the kernel of decodes, in splits of a fixed length
paged_prefill.py       the kernel of prefill chunks, in tiles of queries
online_softmax.py      the loop over keys that both kernels share
work_lists.py          what each program of a launch computes
work_list_kernels.py   the kernels that make these lists
plan_memory.py         where a plan's lists and partial results lie, for one step
attention_buffers.py   and for captured steps
tile_configs.py        tile shapes by model and device
"""
