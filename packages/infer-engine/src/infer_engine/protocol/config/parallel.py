"""`ParallelOptions`: several devices."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from infer_engine.protocol.config.option_group import OptionGroup
from infer_engine.protocol.values import one_of, whole_number

RoutingPolicy = Literal["prefix", "least_loaded", "random"]

MAX_REPLICAS = 64
MAX_RANKS = 64


@dataclass(frozen=True, kw_only=True)
class ParallelOptions(OptionGroup):
    """Copies of the model, and devices that compute a copy together.

    Attributes:
        data_parallel_size: Copies of the model, each in a process of its own, on a GPU or a set of processors of its
            own. Requests are spread over them; those of a copy that is lost go on in another one. Sizes such as
            `max_batch_size` and `num_kv_blocks` are those of each copy.
        tensor_parallel_size: Devices that compute each copy together, each with a part of every large weight and of the
            KV cache, in a process of its own. On a CPU, where it is slower, for tests.
        routing_policy: Which copy a request goes to. `prefix`: the one that has most of its prompt in the cache, unless
            that is busier; `least_loaded`; `random`, to compare with.
    """

    data_parallel_size: int = 1
    tensor_parallel_size: int = 1
    routing_policy: RoutingPolicy = "prefix"

    CHECKS = MappingProxyType(
        {
            "data_parallel_size": whole_number(
                f"a whole number from 1 to {MAX_REPLICAS}", lambda value: 1 <= value <= MAX_REPLICAS
            ),
            "tensor_parallel_size": whole_number(
                f"a whole number from 1 to {MAX_RANKS}", lambda value: 1 <= value <= MAX_RANKS
            ),
            "routing_policy": one_of(*get_args(RoutingPolicy)),
        }
    )
