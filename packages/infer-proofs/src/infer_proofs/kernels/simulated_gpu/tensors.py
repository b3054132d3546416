"""`GpuTensor`: a tensor that says that it is on a GPU, over memory of the CPU where its operators compute."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from infer_proofs.kernels.simulated_gpu.machine import Machine, fill_with_nonsense

_aten, _prim = torch.ops.aten, torch.ops.prim

_WAITING = {
    _aten.item.default,
    _aten.is_nonzero.default,
    _aten._local_scalar_dense.default,  # noqa: SLF001 - its only name
    _aten.equal.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
}
"""Operators that wait for the device, since the host needs their result or its size."""

_MIXING = {_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default}
"""Operators that take tensors of the host beside those of a GPU, and copy them."""


class GpuTensor(Tensor):
    """A tensor of a made-up GPU.

    Attributes:
        on_cpu: the tensor of the CPU that has the same memory.
        machine: the GPUs.
        gpu: the device it is on.
    """

    on_cpu: Tensor
    machine: Machine
    gpu: torch.device

    @staticmethod
    def __new__(cls, inner: Tensor, machine: Machine, gpu: torch.device) -> Self:
        """Let memory of the CPU be on `gpu`."""
        self: Self = Tensor._make_subclass(  # noqa: SLF001 - as torch's fake tensors do
            cls, inner, require_grad=False, dispatch_device=True, device_for_backend_keys=gpu
        )
        self.on_cpu, self.machine, self.gpu = inner, machine, gpu
        return self

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # noqa: SLF001 - as subclasses with operators do

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's types know of none
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Compute on the CPU."""
        leaves = tree_flatten((args, kwargs))[0]
        machine = next(leaf.machine for leaf in leaves if isinstance(leaf, GpuTensor))
        return dispatch(machine, func, args, kwargs or {})

    def tolist(self) -> Any:
        """Return the elements; torch refuses subclasses here."""
        return self.cpu().tolist()

    def __repr__(self) -> str:  # type: ignore[override]
        """Return the elements and the device."""
        return f"{self.on_cpu!r} on {self.gpu}"


class GpuFactories(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Lets operators that make tensors of a GPU, or in pinned memory, reach `dispatch`."""

    def __init__(self, machine: Machine) -> None:
        """Make tensors of `machine`."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types for it
        self._machine = machine

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute on the CPU."""
        return dispatch(self._machine, func, args, kwargs or {})


def dispatch(machine: Machine, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run an operator as a device would.

    Raises:
        RuntimeError: its tensors are on different devices.
    """
    leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
    gpus = {leaf.gpu for leaf in leaves if isinstance(leaf, GpuTensor)}
    device = kwargs.get("device")
    if not gpus and not kwargs.get("pin_memory") and (device is None or device.type != "cuda") and func not in _PINNED:
        return func(*args, **kwargs)
    if func is _prim.device.default:
        return args[0].gpu
    if func in _PINNED:
        return _PINNED[func](machine, args[0])
    if func.name().startswith("aten::to."):
        with GpuFactories(machine):
            return func.decompose(*args, **kwargs)
    if func is _aten.copy_.default:
        return _copy(machine, *args, **kwargs)
    if func is _aten._to_copy.default:  # noqa: SLF001 - its only name
        return _to_copy(machine, *args, **kwargs)
    if gpus and len(gpus) == 1:
        _refuse_hosts(machine, func, leaves)
    elif gpus:
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {sorted(map(str, gpus))}")
    on = _resolve(machine, device) if device is not None else next(iter(gpus), torch.device("cpu"))
    if func in _WAITING:
        machine.synchronize_stream(on.index)
    return _compute(machine, func, args, kwargs, on=on)


def _compute(machine: Machine, func: Any, args: Sequence[Any], kwargs: dict[str, Any], *, on: torch.device) -> Any:
    """Run an operator over the memory of its tensors; its results are on `on`."""
    leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, GpuTensor)]
    plain_args, plain_kwargs = tree_map(_inner, tuple(args)), tree_map(_inner, kwargs)
    if "device" in plain_kwargs and plain_kwargs["device"] is not None:
        plain_kwargs["device"] = torch.device("cpu")
    is_pinned = plain_kwargs.pop("pin_memory", False)
    results = func(*plain_args, **plain_kwargs)
    if "empty" in func.name() and isinstance(results, Tensor):
        fill_with_nonsense(results)
    if is_pinned:
        return machine.pin(results)
    if on.type == "cpu":
        return results
    if machine.capture is not None and not func.is_view and "empty" not in func.name():
        machine.capture.append(lambda: _run_again(func, plain_args, plain_kwargs, results))

    def wrap(result: Any) -> Any:
        if not isinstance(result, Tensor):
            return result
        same = next((leaf for leaf in leaves if leaf.on_cpu is result), None)
        return on_gpu(machine, result, on) if same is None else same

    return tree_map(wrap, results)


def on_gpu(machine: Machine, inner: Tensor, gpu: torch.device) -> GpuTensor:
    """Let memory of the CPU be on a GPU, and count it."""
    machine.gpu_of(gpu.index).memory.allocate(inner.untyped_storage())
    return GpuTensor(inner, machine, gpu)


def _run_again(func: Any, args: Sequence[Any], kwargs: dict[str, Any], results: Any) -> None:
    """Run an operator again, with its results where they were."""
    found = func(*args, **kwargs)
    pairs = [(results, found)] if isinstance(results, Tensor) else zip(results or (), found or (), strict=True)
    for kept, fresh in pairs:
        if isinstance(kept, Tensor) and kept.data_ptr() != fresh.data_ptr():
            kept.copy_(fresh)


def _copy(machine: Machine, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:  # noqa: FBT001, FBT002 - torch's order
    """`target.copy_(source)` between devices, or within one."""
    to, source_inner = _inner(target), _inner(source)
    if isinstance(target, GpuTensor) and isinstance(source, GpuTensor):
        machine.run(lambda: to.copy_(source_inner))
    elif isinstance(target, GpuTensor):
        if not non_blocking or not machine.is_pinned(source):
            machine.forbid_in_capture("copying from memory that is not pinned")
        copied = source if source.shape == target.shape else source.expand(target.shape)
        index = target.gpu.index
        machine.run(lambda: machine.copy_from_host(to, copied, index=index, non_blocking=non_blocking))
    else:
        assert isinstance(source, GpuTensor)
        index = source.gpu.index
        machine.run(lambda: machine.copy_to_host(to, source_inner, index=index, non_blocking=non_blocking))
    return target


def _to_copy(machine: Machine, source: Tensor, **options: Any) -> Tensor:
    """`source.to(...)`."""
    non_blocking = options.pop("non_blocking", False)
    device = options.pop("device", None)
    here = source.gpu if isinstance(source, GpuTensor) else torch.device("cpu")
    there = here if device is None else _resolve(machine, device)
    options.pop("pin_memory", None)
    if here == there:
        return _compute(machine, _aten._to_copy.default, (source,), options, on=there)  # type: ignore[no-any-return]  # noqa: SLF001 - its only name
    converted = _aten._to_copy.default(_inner(source), **options)  # noqa: SLF001 - its only name
    if here.type == "cpu" and machine.is_pinned(source):
        machine.pin(converted)  # PyTorch converts on the device
    result = torch.empty_like(converted) if there.type == "cpu" else on_gpu(machine, torch.empty_like(converted), there)
    origin = converted if here.type == "cpu" else on_gpu(machine, converted, here)
    return _copy(machine, result, source if converted is _inner(source) else origin, non_blocking)


def _refuse_hosts(machine: Machine, func: Any, leaves: list[Tensor]) -> None:
    """Refuse tensors of the host beside those of a GPU, except scalars, and indices outside of a capture."""
    hosts = [leaf for leaf in leaves if not isinstance(leaf, GpuTensor) and leaf.dim() > 0]
    if func in _MIXING:
        if hosts or any(leaf.dtype == torch.bool for leaf in leaves[1:]):
            machine.forbid_in_capture("indices that lie on the host, or are a mask")
    elif hosts:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, cuda and cpu! (`{func}`)"
        )


def _resolve(machine: Machine, device: torch.device) -> torch.device:
    if device.type != "cuda":
        return device
    index = machine.current if device.index is None else device.index  # type: ignore[redundant-expr]  # torch's types err
    machine.gpu_of(index)
    return torch.device("cuda", index)


def _inner(value: Any) -> Any:
    return value.on_cpu if isinstance(value, GpuTensor) else value


_PINNED: dict[Any, Callable[[Machine, Tensor], Any]] = {
    _aten.is_pinned.default: lambda machine, tensor: not isinstance(tensor, GpuTensor) and machine.is_pinned(tensor),
    _aten._pin_memory.default: lambda machine, tensor: machine.pin(tensor.clone()),  # noqa: SLF001 - its only name
    _aten.pin_memory.default: lambda machine, tensor: machine.pin(tensor.clone()),
}
"""What is asked of pinned memory."""
