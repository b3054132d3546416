"""GGUF files of models whose layers have states, served: the answers are those of the checkpoints."""

from pathlib import Path
from typing import Any

import pytest

from infer_engine import LLM, SamplingParams
from infer_proofs.engine.models import random_prompt
from infer_proofs.models import save_tiny, save_tiny_tokenizer
from infer_proofs.models.gguf_files import save_gguf

PROMPTS = [random_prompt(length) for length in (1, 9, 40)]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
SIZES: dict[str, Any] = {"hidden_size": 256, "head_dim": 64, "linear_num_value_heads": 8}
HEADS: dict[str, Any] = {"linear_key_head_dim": 32, "linear_value_head_dim": 32}


def some_quantized(name: str) -> str | None:
    kinds = {"attn_qkv": "Q8_0", "ssm_out": "Q4_K", "attn_gate": "Q4_K", "in_proj": "Q4_K", "ssm_in": "IQ3_S"}
    return kinds.get(name.split(".")[-2])


@pytest.mark.parametrize("family", ["lfm2", "qwen3_5", "qwen3_next", "qwen3_5_moe", "granitemoehybrid"])
def test_greedy_tokens_are_those_of_the_checkpoint(family: str, tmp_path: Path) -> None:
    save_tiny(family, tmp_path, **SIZES, **HEADS)
    save_tiny_tokenizer(tmp_path)
    path = tmp_path / "model.gguf"
    save_gguf(tmp_path, path, kind_of=some_quantized)
    ours, theirs = (
        [
            each.token_ids
            for each in LLM(str(model), dtype="float32", quantization="none").generate(PROMPTS, GREEDY, use_tqdm=False)
        ]
        for model in (path, tmp_path)
    )
    assert ours == theirs
