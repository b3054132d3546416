"""`ModelOptions`: which checkpoint, and how it is read."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from infer_engine.protocol.config.option_group import OptionGroup
from infer_engine.protocol.structured_outputs import Whitespace
from infer_engine.protocol.values import COUNT, one_of, optional, text, whole_number

DType = Literal["auto", "bfloat16", "float16", "float32"]
Quantization = Literal["auto", "none", "int8", "int4", "fp8"]
LoadFormat = Literal["auto", "dummy"]
ToolCallFormatChoice = Literal[
    "auto",
    "hermes",
    "llama3_json",
    "mistral",
    "mistral_args",
    "deepseek_v3",
    "deepseek_v31",
    "kimi_k2",
    "granite",
    "phi4_mini",
    "jamba",
    "minimax_m1",
    "nemotron",
    "apertus",
    "internlm",
    "qwen3_coder",
    "seed_oss",
    "glm45",
    "minimax_m2",
    "deepseek_v32",
    "deepseek_v4",
    "gemma4",
    "functiongemma",
    "lfm2",
    "olmo3",
    "llama4_pythonic",
    "llama3_function",
    "json",
]
ReasoningFormatChoice = Literal[
    "auto", "none", "think", "mistral", "seed", "kimi", "exaone", "cohere", "apertus", "gemma4", "harmony"
]
GenerationConfigChoice = Literal["auto", "none", "vllm"]


@dataclass(frozen=True, kw_only=True)
class ModelOptions(OptionGroup):
    """The checkpoint to run, its device, and the way in which it is read.

    Attributes:
        model: Folder of a checkpoint, a GGUF file, or a Hub id. Left out: SmolLM2-135M-Instruct if it is installed, or
            infer-demo.
        dtype: Type of weights and activations. `auto`: the checkpoint's own.
        quantization: How weights are kept. `auto`: as the checkpoint has them, quantized or not. `none`: dequantized.
            `int8`, `int4`, and on a GPU `fp8`: quantized while they are read.
        device: `auto`, `cuda`, `cuda:N` or `cpu`. `auto`: a GPU if there is one.
        load_format: `auto` reads safetensors; `dummy` makes random weights from `config.json` alone.
        max_seq_len: Prompt plus generated tokens of one request. Left out: the model's maximum, cut to what fits the KV
            cache.
        seed: Base seed of requests without a seed of their own. Left out: drawn at start.
        tool_call_format: How the model writes tool calls. `auto`: as its chat template asks for them.
        reasoning_format: How the model writes what it thinks before it answers; `none`: it does not, or it is to be
            part of the text. `auto`: as its chat template has it.
        reasoning_budget: Most tokens that the model thinks before an answer to a conversation, where the request does
            not say it. -1: no limit. Then the end of thinking is forced.
        reasoning_budget_message: What the model says at that limit, before the end of thinking. Left out: nothing.
        generation_config: Where a request's sampling values come from that it leaves out. `auto`: from the model's
            `generation_config.json`; `none`, or `vllm` as vLLM spells it: fixed ones.
        structured_output_whitespace: Whitespace in JSON of requests that ask for it and not for its whitespace.
            `compact`: at most one blank, after a comma or a colon; `any`: line breaks and indentation too.
    """

    model: str | None = None
    dtype: DType = "auto"
    quantization: Quantization = "auto"
    device: str = "auto"
    load_format: LoadFormat = "auto"
    max_seq_len: int | None = None
    seed: int | None = None
    tool_call_format: ToolCallFormatChoice = "auto"
    reasoning_format: ReasoningFormatChoice = "auto"
    reasoning_budget: int = -1
    reasoning_budget_message: str | None = None
    generation_config: GenerationConfigChoice = "auto"
    structured_output_whitespace: Whitespace = "compact"

    CHECKS = MappingProxyType(
        {
            "model": optional(text(r".*\S.*", "a folder, a GGUF file or a Hub id, as a string")),
            "dtype": one_of(*get_args(DType)),
            "quantization": one_of(*get_args(Quantization)),
            "device": text(r"auto|cpu|cuda(:[0-9]{1,9})?", "`auto`, `cpu`, `cuda` or `cuda:N`"),
            "load_format": one_of(*get_args(LoadFormat)),
            "max_seq_len": optional(COUNT),
            "seed": optional(whole_number("a signed 64-bit integer", lambda value: -(2**63) <= value < 2**63)),
            "tool_call_format": one_of(*get_args(ToolCallFormatChoice)),
            "reasoning_format": one_of(*get_args(ReasoningFormatChoice)),
            "reasoning_budget": whole_number(
                "a whole number of at least 0, or -1 for no limit", lambda value: value >= -1
            ),
            "reasoning_budget_message": optional(text(r"(?s).*", "a text")),
            "generation_config": one_of(*get_args(GenerationConfigChoice)),
            "structured_output_whitespace": one_of(*get_args(Whitespace)),
        }
    )
