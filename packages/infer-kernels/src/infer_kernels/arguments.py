"""Argument checks. Knows shapes, dtypes, devices and strides; knows no op.

Each function raises with a message that names the argument, its value and what would be right, and costs well under a
microsecond where nothing is wrong: they run once per op and layer.
"""

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.int32, torch.int64)


def require_float(name: str, tensor: Tensor) -> None:
    """Raise `TypeError` unless `tensor` is fp32, bf16 or fp16."""
    if tensor.dtype not in FLOATS:
        raise TypeError(f"`{name}` has dtype {tensor.dtype}; pass torch.float32, torch.bfloat16 or torch.float16")


def require_integer(name: str, tensor: Tensor) -> None:
    """Raise `TypeError` unless `tensor` is int32 or int64."""
    if tensor.dtype not in INTEGERS:
        raise TypeError(f"`{name}` has dtype {tensor.dtype}; pass torch.int32 or torch.int64")


def require_dtype(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    """Raise `TypeError` unless `tensor` has `dtype`."""
    if tensor.dtype != dtype:
        raise TypeError(f"`{name}` has dtype {tensor.dtype}; convert it with `.to({dtype})`")


def require_rank(name: str, tensor: Tensor, dimensions: str) -> None:
    """Raise `ValueError` unless `tensor` has as many dimensions as `dimensions`, such as "tokens, hidden", names."""
    if tensor.dim() != dimensions.count(",") + 1:
        raise ValueError(f"`{name}` has shape {list(tensor.shape)}; pass [{dimensions}]")


def require_shape(name: str, tensor: Tensor, shape: tuple[int, ...], why: str) -> None:
    """Raise `ValueError` unless `tensor` has `shape`; `why` says where the shape comes from."""
    if tensor.shape != shape:
        raise ValueError(f"`{name}` has shape {list(tensor.shape)}; pass {list(shape)}, {why}")


def require_like(name: str, tensor: Tensor, like_name: str, like: Tensor) -> None:
    """Raise unless `tensor` has the dtype and the device of `like`."""
    if tensor.dtype != like.dtype:
        raise TypeError(
            f"`{name}` has dtype {tensor.dtype} but `{like_name}` has {like.dtype}; convert one with `.to(...)`"
        )
    require_device(name, tensor, like_name, like.device)


def require_device(name: str, tensor: Tensor, like_name: str, device: torch.device) -> None:
    """Raise `ValueError` unless `tensor` is on `device`, where `like_name` is."""
    if tensor.device != device:
        raise ValueError(
            f"`{name}` is on {tensor.device} but `{like_name}` is on {device}; move one with `.to(device)`"
        )


def require_dense_rows(name: str, tensor: Tensor) -> None:
    """Raise `ValueError` unless the elements of the last dimension lie side by side."""
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        raise ValueError(
            f"`{name}` has stride {tensor.stride(-1)} in its last dimension; pass one with stride 1 "
            "there, for example through `.contiguous()`"
        )


def require_out(name: str, out: Tensor, like_name: str, like: Tensor) -> None:
    """Raise unless `out` can hold a result of the shape, dtype and device of `like`."""
    require_shape(name, out, like.shape, f"the shape of `{like_name}`")
    require_like(name, out, like_name, like)
    require_dense_rows(name, out)


def require_layer_input(x: Tensor, bias: Tensor | None, *, in_features: int, out_features: int) -> None:
    """Raise unless `x` [..., in_features] and `bias` [out_features] fit a dense layer with a packed weight."""
    if x.dim() == 0 or x.shape[-1] != in_features:
        raise ValueError(f"`x` has shape {list(x.shape)}; pass [..., {in_features}], as many as `weight` has inputs")
    if bias is not None:
        require_shape("bias", bias, (out_features,), "as many as `weight` has outputs")
        require_like("bias", bias, "x", x)
        require_dense_rows("bias", bias)
