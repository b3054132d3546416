"""Attention over a paged KV cache, and over whole sequences without one. Knows flat batches; knows no model.

paged.py       `plan_attention` and `paged_attention`: argument checks, and the choice of a device's plan
on_device.py   `plan_attention_on_device`: a plan over metadata on the device, for captured steps
plan.py        what every plan has in common
reference.py   the formula
causal.py      attention without a cache
masks.py       masks, soft caps and sinks of the PyTorch paths
triton/        the kernels, their work lists and device memory
cpu.py         the C++ kernel on a CPU, or plain PyTorch
"""

from infer_kernels.attention.causal import causal_attention
from infer_kernels.attention.on_device import plan_attention_on_device
from infer_kernels.attention.paged import paged_attention, plan_attention
from infer_kernels.attention.plan import AttentionHeads, AttentionPlan, DeviceMetadata
from infer_kernels.attention.triton.attention_buffers import AttentionBuffers

__all__ = [
    "AttentionBuffers",
    "AttentionHeads",
    "AttentionPlan",
    "DeviceMetadata",
    "causal_attention",
    "paged_attention",
    "plan_attention",
    "plan_attention_on_device",
]
