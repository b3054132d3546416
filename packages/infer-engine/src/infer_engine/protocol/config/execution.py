"""`ExecutionOptions`: how a step runs."""

from dataclasses import dataclass
from types import MappingProxyType

from infer_engine.protocol.config.option_group import OptionGroup
from infer_engine.protocol.values import MAX_TIMEOUT_S, TIMEOUT, number, optional, switch


@dataclass(frozen=True, kw_only=True)
class ExecutionOptions(OptionGroup):
    """The way in which a step runs on its device.

    Attributes:
        use_cuda_graphs: On a GPU, capture steps at the start and replay each that computes what its kernels do. Left
            out: on.
        use_cpu_graphs: On a CPU with C++ kernels, capture a step once and replay it. Left out: on, unless there are
            several ranks.
        use_fused_products: On a GPU, compute each dense layer of at most 16 tokens in one launch with the norm, gate or
            addition beside it. Left out: on, unless `batch_invariant` is.
        batch_invariant: Results do not depend, bit for bit, on the other requests of the batch. Costs speed, but not on
            a CPU with C++ kernels, where it always holds.
        step_timeout_s: Seconds after which a step counts as stuck, and the engine as dead.
    """

    use_cuda_graphs: bool | None = None
    use_cpu_graphs: bool | None = None
    use_fused_products: bool | None = None
    batch_invariant: bool = False
    step_timeout_s: float = 300.0

    CHECKS = MappingProxyType(
        {
            "use_cuda_graphs": optional(switch()),
            "use_cpu_graphs": optional(switch()),
            "use_fused_products": optional(switch()),
            "batch_invariant": switch(),
            "step_timeout_s": number(TIMEOUT % "above 0", lambda value: 0 < value <= MAX_TIMEOUT_S),
        }
    )

    def check_conflicts(self) -> None:
        """Check the values against each other."""
        if self.use_fused_products and self.batch_invariant:
            why = "and sums of larger steps have another order"
            raise self.conflict("use_fused_products", "batch_invariant", why=why, fix="leave one of them out")
