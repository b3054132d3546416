"""The memory that a loaded model's weights take, as they are, packed or quantized."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import chain

from torch import Tensor, nn


def weight_bytes(model: nn.Module) -> int:
    """Return the bytes of all weights that `model` holds, each storage once, whatever views there are of it.

    These are its parameters, its persistent buffers, and every tensor among its modules' attributes, directly or within
    the dataclasses that packed and quantized weights are. Tables that are computed (buffers that are not persistent)
    are none.
    """
    storages = (
        tensor.untyped_storage()
        for module in model.modules()
        for tensor in chain(_attributes(module), _persistent_buffers(module))
    )
    sizes = {(storage.device, storage.data_ptr()): storage.nbytes() for storage in storages}
    return sum(sizes.values())


def bf16_bytes(num_weights: int) -> int:
    """Return what so many weights take in bf16."""
    return 2 * num_weights


def _persistent_buffers(module: nn.Module) -> Iterator[Tensor]:
    names = module.state_dict().keys()
    return (buffer for name, buffer in module.named_buffers(recurse=False) if name in names)


def _attributes(module: nn.Module) -> Iterator[Tensor]:
    """Yield the tensors among a module's attributes; its parameters are in a dictionary that is one of them."""
    for name, value in vars(module).items():
        if name != "_buffers":
            yield from _tensors_of(value)


def _tensors_of(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _tensors_of(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors_of(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors_of(each)
