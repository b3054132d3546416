"""`DeltaHeads`: the heads of gated delta nets in GGUF files, and the orders in which their rows are stored.

Of two key heads with three value heads each:

    models                    0.0 0.1 0.2 1.0 1.1 1.2       those of a key head together
    `qwen35`, `qwen35moe`     0.0 1.0 0.1 1.1 0.2 1.2       in turns: the first of each key head, the second, ...

`qwen3next` has the models' order, and in one tensor the rows of all products of a key head together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infer_models.gguf.metadata import Metadata

_HEAD_MULTIPLE = 16
"""What sizes of heads are multiples of, so that codes of a head share no bytes with others."""
_STATE_SIZE, _KEY_HEADS, _VALUE_HEADS, _ALL_VALUES = (
    ".ssm.state_size",
    ".ssm.group_count",
    ".ssm.time_step_rank",
    ".ssm.inner_size",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaHeads:
    """Key heads, value heads, and the elements of each."""

    key_heads: int
    value_heads: int
    head_dim: int

    @classmethod
    def read(cls, metadata: Metadata) -> "DeltaHeads":
        """Read the sizes.

        Raises:
            CheckpointError: one is missing, or they do not fit together.
        """
        key_heads, value_heads = metadata.count(_KEY_HEADS), metadata.count(_VALUE_HEADS)
        head_dim = metadata.count(_STATE_SIZE)
        if not head_dim or head_dim % _HEAD_MULTIPLE:
            raise metadata.invalid(_STATE_SIZE, f"a multiple of {_HEAD_MULTIPLE}")
        if not key_heads:
            raise metadata.invalid(_KEY_HEADS, "a whole number above 0")
        if not value_heads or value_heads % key_heads:
            raise metadata.invalid(_VALUE_HEADS, f"a multiple of the key heads, {key_heads}")
        if metadata.count(_ALL_VALUES) != value_heads * head_dim:
            raise metadata.invalid(_ALL_VALUES, f"{value_heads} value heads of {head_dim} elements")
        return cls(key_heads=key_heads, value_heads=value_heads, head_dim=head_dim)

    @property
    def num_turns(self) -> int:
        """Value heads of a key head."""
        return self.value_heads // self.key_heads

    @property
    def keys(self) -> int:
        """Elements of all key heads."""
        return self.key_heads * self.head_dim

    @property
    def values(self) -> int:
        """Elements of all value heads."""
        return self.value_heads * self.head_dim

    def in_turns(self, size: int, *, num_before: int = 0) -> list[int]:
        """Return the stored row of each row, where value heads of `size` rows take turns, after rows as they are."""
        heads = [turn * self.key_heads + key for key in range(self.key_heads) for turn in range(self.num_turns)]
        stored = [num_before + head * size + row for head in heads for row in range(size)]
        return [*range(num_before), *stored]

    def together(self, sizes: Sequence[int], parts: Sequence[int]) -> list[int]:
        """Return the stored rows of some parts, where each key head has rows of all parts together, of these sizes."""
        return [
            key * sum(sizes) + sum(sizes[:part]) + row
            for part in parts
            for key in range(self.key_heads)
            for row in range(sizes[part])
        ]


def rows_in_turns(metadata: Metadata, name: str, num_rows: int) -> Mapping[str, Sequence[int]]:
    """Return the orders of the rows of a tensor of `qwen35`, as `Architecture.rows`."""
    known = {
        "attn_qkv": ("linear_attn.in_proj_qkv.weight", True, True),
        "ssm_conv1d": ("linear_attn.conv1d.weight", True, True),
        "attn_gate": ("linear_attn.in_proj_z.weight", False, True),
        "ssm_beta": ("linear_attn.in_proj_b.weight", False, False),
        "ssm_alpha": ("linear_attn.in_proj_a.weight", False, False),
        "ssm_a": ("linear_attn.A_log", False, False),
        "ssm_dt": ("linear_attn.dt_bias", False, False),
    }
    if name not in known:
        return {}
    heads = DeltaHeads.read(metadata)
    own, is_after_keys, is_of_elements = known[name]
    num_before, size = 2 * heads.keys if is_after_keys else 0, heads.head_dim if is_of_elements else 1
    if heads.num_turns == 1 or num_rows != num_before + heads.value_heads * size:
        return {}
    return {own: heads.in_turns(size, num_before=num_before)}


def rows_together(metadata: Metadata, name: str, num_rows: int) -> Mapping[str, Sequence[int]]:
    """Return the orders of the rows of a tensor of `qwen3next`, as `Architecture.rows`; `ssm_in` is in old files."""
    if name not in ("ssm_ba", "ssm_in"):
        return {}
    heads = DeltaHeads.read(metadata)
    of_key = heads.num_turns if name == "ssm_ba" else heads.num_turns * heads.head_dim
    sizes = [of_key, of_key] if name == "ssm_ba" else [heads.head_dim, heads.head_dim, of_key, of_key]
    parts = {"b": (0,), "a": (1,)} if name == "ssm_ba" else {"qkv": (0, 1, 2), "z": (3,)}
    if num_rows != heads.key_heads * sum(sizes):
        return {}
    return {f"linear_attn.in_proj_{part}.weight": heads.together(sizes, each) for part, each in parts.items()}
