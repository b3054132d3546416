"""The part `model`: the checkpoint is whole, its tokenizer works, and it fits into memory. Reads no weights."""

import dataclasses
import math
from collections import Counter

import torch

from infer_engine.assembly.core import load_tokenizer
from infer_engine.assembly.runner import end_token_ids, usable_vocab_size
from infer_engine.doctor.model_reading import (
    ReadModel,
    loading_warnings,
    read_model,
    sized_rank,
    without_weights,
)
from infer_engine.doctor.reporter import Reporter, size
from infer_engine.frontend.generation_config import sampling_defaults
from infer_engine.model_runner.loading.rank_loading import LoadedRank
from infer_engine.protocol import CheckpointUnusableError
from infer_engine.sizing import KVMemory, kv_memory, resolve_device
from infer_kernels import QuantizedWeight
from infer_models import CausalLM, CheckpointError
from infer_models.checkpoint import check_weights, read_checkpoint_config
from infer_models.hub import DEMO_MODEL_NAME, default_model_name
from infer_models.quantization import GGUF
from infer_models.text import ChatTemplateError, Tokenizer
from infer_models.weight_allocation import weight_bytes

SAMPLE_TEXT = "Hello, world."
_LOGIT_COPIES = 6
"""Rows of fp32 logits that the costliest sampling holds at once, about."""


def examine_checkpoint(reporter: Reporter) -> None:
    """Report the model of the request."""
    try:
        read = read_model(reporter)
    except CheckpointError as error:
        fix = "the doctor downloads nothing: name a folder, or a model that was downloaded before"
        if (reporter.request.model or default_model_name()) == DEMO_MODEL_NAME:
            fix = "install infer-models again"
        reporter.fail("config.json", str(error), fix=fix)
        reporter.finish("the model cannot be read")
        return
    config = read.config
    shape = {name: value for name, value in dataclasses.asdict(config).items() if name not in ("windows", "ropes")}
    shape["quantization"] = None if config.quantization is None else config.quantization.method
    windows = {str(window): config.windows.count(window) for window in dict.fromkeys(config.windows)}
    reporter.details(model={"name": read.name, **shape, "layers_by_window": windows})
    reporter.ok("config.json", f"{config.model_type}, {config.num_layers} layers of {config.hidden_size}")
    try:
        model = without_weights(read)
    except (CheckpointError, ValueError) as error:
        reporter.fail("quantization", str(error), fix="choose another `--quantization`, or another checkpoint")
        reporter.finish("the weights cannot be kept so")
        return
    weights_bytes = weight_bytes(model, device=resolve_device(read.engine_config.device))
    _examine_weights(reporter, read, model)
    _examine_tokenizer(reporter, read)
    _examine_memory(reporter, read, model, weights_bytes)
    reporter.finish(
        f"{read.name}: {config.model_type}, {model.num_parameters / 1e6:.4g} million parameters, "
        f"{size(weights_bytes)} in {', '.join(_kinds_of_weights(model))}"
    )


def _kinds_of_weights(model: CausalLM) -> list[str]:
    """Return the types that the weights have in memory, the most common first."""
    kinds = Counter(
        weight.encoding if isinstance(weight, QuantizedWeight) else str(weight.dtype).removeprefix("torch.")
        for weight, _ in model.stored_by_parameter()
        if len(weight.shape) > 1
    )
    return [kind for kind, _ in kinds.most_common()]


def _examine_weights(reporter: Reporter, read: ReadModel, model: CausalLM) -> None:
    try:
        with loading_warnings() as warnings:
            read_checkpoint_config(read.folder)
            num_files = check_weights(model, read.folder)
    except CheckpointError as error:
        reporter.fail("weights", str(error), fix="download or save the checkpoint again")
    else:
        plural = "" if num_files == 1 else "s"
        reporter.ok(
            "weights", f"{len(model.stored_weights())} tensors in {num_files} file{plural}: names, shapes, bytes"
        )
        for warning in warnings:
            reporter.warn("weights", warning, fix="none is needed where that is meant; loading warns of it too")
        quantization = read.config.quantization
        if quantization is not None and quantization.method == GGUF:
            types = Counter(quantization.fields.nested("kinds").text_values())
            said = ", ".join(f"{count} {name}" for name, count in types.most_common())
            reporter.ok("types", f"{said}; in memory {', '.join(_kinds_of_weights(model))}")


def _examine_tokenizer(reporter: Reporter, read: ReadModel) -> None:
    try:
        tokenizer = load_tokenizer(read.engine_config)
        vocab_size = usable_vocab_size(tokenizer, read.config, read.folder)
        eos_token_ids = end_token_ids(tokenizer, read.folder, vocab_size=vocab_size)
    except (CheckpointError, CheckpointUnusableError) as error:
        reporter.fail("tokenizer", str(error), fix="download or save the checkpoint again")
        return
    token_ids = tokenizer.encode(SAMPLE_TEXT)
    text = tokenizer.decode(token_ids)
    if text.strip() == SAMPLE_TEXT:
        reporter.ok("tokenizer", f"{tokenizer.vocab_size} tokens; a text becomes {len(token_ids)} and the text again")
    else:
        fix = "a base model's tokenizer may normalize texts; else download the checkpoint again"
        reporter.warn("tokenizer", f"{SAMPLE_TEXT!r} becomes {text!r} and not itself", fix=fix)
    if not eos_token_ids:
        fix = "set `eos_token_id` in generation_config.json, or `eos_token` in tokenizer_config.json"
        reporter.warn("end of text", "no token ends an answer: answers end at `max_tokens` only", fix=fix)
    _examine_chat(reporter, tokenizer)
    defaults = sampling_defaults(read.engine_config, read.folder).given
    if defaults:
        said = ", ".join(f"{name} {value:g}" for name, value in defaults.items())
        reporter.ok("sampling defaults", f"{said}, for requests that leave them out")


def _examine_chat(reporter: Reporter, tokenizer: Tokenizer) -> None:
    if not tokenizer.has_chat:
        reporter.skip("chat template", "there is none: completions work, conversations are refused")
        return
    try:
        token_ids = tokenizer.encode_chat([{"role": "user", "content": SAMPLE_TEXT}])
    except ChatTemplateError as error:
        reporter.fail("chat template", str(error), fix="download the checkpoint again, or mend its template")
    else:
        reporter.ok("chat template", f"a message becomes {len(token_ids)} tokens")


def _examine_memory(reporter: Reporter, read: ReadModel, model: CausalLM, weights_bytes: int) -> None:
    """Report whether weights and a KV cache of the default size fit, by estimate."""
    try:
        rank = sized_rank(read, model)
    except ValueError as error:
        reporter.skip("memory", str(error))
        return
    device = rank.rank_model.device
    taken = weights_bytes + (activation_bytes(rank) if device.type == "cuda" else 0)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    memory = kv_memory(read.engine_config, device=device, activation_bytes=0)
    left = KVMemory(
        share=max(0, memory.share - (taken if device.type == "cuda" else taken // 4)), free=max(0, memory.free - taken)
    )
    where = f"{size(memory.free)} are free on {device}"
    if weights_bytes > memory.free:
        fix = "free memory, take a smaller model or `--dtype bfloat16`, or divide it: `--tensor-parallel-size`"
        reporter.fail("memory", f"weights take {size(weights_bytes)} and {where}", fix=fix)
        return
    try:
        sizes = rank.size_cache(left)
    except ValueError as error:
        reporter.fail("memory", f"{where}. {error}", fix="free memory, or lower `--max-seq-len`")
        return
    widest = max(range(len(sizes.num_blocks)), key=lambda group: rank.groups.windows[group] or math.inf)
    num_tokens = sizes.num_blocks[widest] * rank.block_size
    reporter.details(
        memory_estimate={
            "weights": weights_bytes,
            "step": taken - weights_bytes,
            "free": memory.free,
            "kv_tokens": num_tokens,
            "max_seq_len": sizes.max_seq_len,
        }
    )
    found = f"{where}: weights take {size(weights_bytes)}, and the KV cache holds about {num_tokens} tokens"
    most = read.config.max_position_embeddings
    if sizes.max_seq_len < most:
        flag = "--gpu-memory-utilization" if device.type == "cuda" else "--kv-cache-memory"
        fix = f"start with `--max-seq-len {sizes.max_seq_len}`, or raise `{flag}`"
        reporter.warn("memory", f"{found}, fewer than the {most} of the longest request", fix=fix)
    else:
        reporter.ok("memory", found)


def activation_bytes(rank: LoadedRank) -> int:
    """Return about how many bytes the largest step takes; the engine measures it."""
    config, limits = rank.model_config, rank.limits
    width = 6 * config.hidden_size + 3 * config.intermediate_size
    width += 2 * (config.q_heads + 2 * config.kv_heads) * config.head_dim
    logits = limits.max_batch_size * config.vocab_size * (4 * _LOGIT_COPIES + 5)  # penalties keep 5 bytes
    return rank.max_step_tokens * width * rank.dtype.itemsize + logits
