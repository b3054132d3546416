"""llama.cpp's own converter and server, on drawn checkpoints that `transformers` makes.

A draw is a family at drawn sizes and fields, a type of weights, and switches of the converter. Weights are rounded to
the type before the checkpoint is saved, so that nothing is lost. The file then has the configuration and the weights of
the checkpoint, and 24 greedy tokens of `transformers`; those of llama.cpp's server too, where `INFER_LLAMA_SERVER`
names it.
"""

import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import gguf
from infer_models import CausalView, load_model
from infer_models.checkpoint import read_checkpoint_config
from infer_models.config import ModelConfig
from infer_proofs.models import save_tiny, save_tiny_tokenizer

CPU = torch.device("cpu")
SERVER = os.environ.get("INFER_LLAMA_SERVER")
PROMPT = [3 + (37 * i + i // 9) % 300 for i in range(44)]
NUM_TOKENS = 24
TIE = 1e-5
"""Two tokens whose logits, of about 1, differ by less are the same choice: sums in another order change so much."""
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
TYPES = ("f32", "f16", "bf16", "q8_0")
NOT_CARRIED: Mapping[str, str] = MappingProxyType(
    {
        "windows": "files of `llama` have no key of a sliding window, and llama.cpp computes Mistral without one",
        "llama3": "the converter writes the factors of Llama 3's scaling for `llama` and `smollm3` alone",
        "layers without positions": "the converter writes none of `no_rope_layers`; llama.cpp leaves out every fourth",
    }
)
"""Fields that the converter does not write: what they change is no fault of a reader."""

Draw = Callable[[random.Random], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A drawn checkpoint, and how it is converted."""

    family: str
    fields: Mapping[str, Any]
    kind: str
    switches: Sequence[str]
    rung: str | None = None
    of_ollama: bool = False

    def __str__(self) -> str:
        return f"{self.family} {self.kind} {' '.join(self.switches)} {self.of_ollama} {json.dumps(self.fields)}"


def rope(draw: random.Random, kinds: Sequence[str] = ("default", "linear", "yarn", "llama3")) -> dict[str, Any]:
    theta = draw.choice([1e4, 5e5, 1e6])
    scaling: dict[str, Any] = {"rope_type": draw.choice(kinds), "rope_theta": theta}
    factor = draw.choice([2.0, 4.0, 8.0])
    match scaling["rope_type"]:
        case "linear":
            scaling |= {"factor": factor}
        case "yarn":
            scaling |= {"factor": factor, "original_max_position_embeddings": draw.choice([32, 128])}
            scaling |= draw.choice([{}, {"beta_fast": 16.0, "beta_slow": 2.0}])
        case "llama3":
            scaling |= {"factor": factor, "original_max_position_embeddings": draw.choice([32, 8192])}
            scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return scaling


def sizes(draw: random.Random) -> dict[str, Any]:
    heads, kv_heads = draw.choice([(4, 2), (4, 4), (4, 1), (2, 2)])
    return {
        "hidden_size": draw.choice([64, 128]),
        "intermediate_size": draw.choice([64, 96]),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": draw.choice([16, 32, 64]),
        "vocab_size": draw.choice([328, 352]),
        "rms_norm_eps": draw.choice([1e-5, 1e-6]),
        "tie_word_embeddings": draw.random() < 0.5,
    }


def plain(draw: random.Random) -> dict[str, Any]:
    return {"num_hidden_layers": draw.randint(1, 4), "rope_parameters": rope(draw)}


def divided(draw: random.Random) -> dict[str, Any]:
    """Heads that divide the hidden size, for those whose converter knows no others."""
    heads = draw.choice([2, 4])
    kv_heads = draw.choice([heads, 1])
    return plain(draw) | {
        "hidden_size": 64,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 64 // heads,
    }


def biased(draw: random.Random) -> dict[str, Any]:
    return {"attention_bias": draw.random() < 0.3, "mlp_bias": draw.random() < 0.3}


def experts(draw: random.Random) -> dict[str, Any]:
    count = draw.choice([4, 6])
    return {"num_experts": count, "num_local_experts": count, "num_experts_per_tok": draw.randint(1, 3)}


def windowed(draw: random.Random, every: int) -> dict[str, Any]:
    """Layers of which every fourth, or sixth, is full, as the converter takes for granted."""
    layers = draw.randint(1, every + 1)
    kinds = [FULL if (layer + 1) % every == 0 else SLIDING for layer in range(layers)]
    return {"num_hidden_layers": layers, "layer_types": kinds, "sliding_window": draw.choice([8, 16])}


def of_both_kinds(full: dict[str, Any], sliding_theta: float) -> dict[str, Any]:
    return {"rope_parameters": {FULL: full, SLIDING: {"rope_type": "default", "rope_theta": sliding_theta}}}


def gemma3(draw: random.Random) -> dict[str, Any]:
    head_dim = draw.choice([16, 32])
    fields = windowed(draw, 6) | of_both_kinds(rope(draw, ["default", "linear"]), 1e4)
    own = {"vocab_size": 320, "tie_word_embeddings": True}  # rows without tokens are cut by the converter
    return fields | own | {"head_dim": head_dim, "query_pre_attn_scalar": head_dim}


def olmo3(draw: random.Random) -> dict[str, Any]:
    full = rope(draw, ["default", "yarn"])
    return (
        windowed(draw, 4)
        | of_both_kinds(full, full["rope_theta"])
        | {"head_dim": 16, "hidden_size": 64, "num_attention_heads": 4}
    )


def phi3(draw: random.Random) -> dict[str, Any]:
    pairs = 12
    scaled = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.75,
        "short_factor": [1.0 + draw.random() for _ in range(pairs)],
        "long_factor": [1.0 + 4 * draw.random() for _ in range(pairs)],
        "original_max_position_embeddings": draw.choice([32, 128]),
    }
    return {
        "num_hidden_layers": draw.randint(1, 3),
        "hidden_size": 128,
        "num_attention_heads": 4,
        "head_dim": 32,
        "num_key_value_heads": draw.choice([4, 2]),
        "sliding_window": None,
        "rope_parameters": draw.choice(
            [scaled, {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}]
        ),
        "original_max_position_embeddings": scaled["original_max_position_embeddings"],
    }


def ministral3(draw: random.Random) -> dict[str, Any]:
    scaled = rope(draw, ["yarn"]) | {"mscale": 1.0, "mscale_all_dim": draw.choice([1.0, 0.5])}
    return {"num_hidden_layers": draw.randint(1, 3), "rope_parameters": scaled | {"llama_4_scaling_beta": 0.1}}


def gpt_oss(draw: random.Random) -> dict[str, Any]:
    layers = draw.randint(1, 4)
    kinds = [SLIDING if layer % 2 == 0 else FULL for layer in range(layers)]
    scaled = rope(draw, ["yarn"]) | {"truncate": False}
    return experts(draw) | {
        "num_hidden_layers": layers,
        "layer_types": kinds,
        "rope_parameters": scaled,
        "head_dim": 32,
    }


def smollm3(draw: random.Random) -> dict[str, Any]:
    layers = draw.randint(1, 5)
    usual = [int((layer + 1) % 4 != 0) for layer in range(layers)]
    other = [draw.randint(0, 1) for _ in range(layers)]
    return divided(draw) | {"num_hidden_layers": layers, "no_rope_layers": draw.choice([usual, usual, other])}


def linear(draw: random.Random) -> dict[str, Any]:
    keys = draw.choice([1, 2])
    return {
        "linear_num_key_heads": keys,
        "linear_num_value_heads": keys * draw.choice([1, 2, 3]),
        "linear_key_head_dim": 32,  # heads whose columns are whole blocks, as their places change
        "linear_value_head_dim": 32,
        "head_dim": 32,
        "intermediate_size": 64,
    }


def granite(draw: random.Random) -> dict[str, Any]:
    scales = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
    return divided(draw) | biased(draw) | {name: round(0.1 + 2 * draw.random(), 2) for name in scales}


def granite_hybrid(draw: random.Random) -> dict[str, Any]:
    """Granite 4, dense or with experts; where all layers attend, they rotate, and the converter writes a `granite`."""
    kinds = [draw.choice([FULL, LINEAR, LINEAR]) for _ in range(draw.randint(1, 4))]
    kinds[draw.randrange(len(kinds))] = FULL
    count = draw.choice([0, 4, 6]) if LINEAR in kinds else 0
    return granite(draw) | {
        "num_hidden_layers": len(kinds),
        "layer_types": kinds,
        "mlp_bias": False,
        "position_embedding_type": None if LINEAR in kinds else "rope",
        "num_local_experts": count,
        "num_experts_per_tok": min(count, draw.randint(1, 3)),
        "shared_intermediate_size": draw.choice([64, 96]),
        "mamba_n_heads": draw.choice([4, 8]),
        "mamba_n_groups": draw.choice([1, 2]),
        "mamba_d_state": draw.choice([16, 32]),
        "mamba_conv_bias": draw.random() < 0.7,
    }


FAMILIES: Mapping[str, Draw] = MappingProxyType(
    {
        "llama": lambda draw: plain(draw) | biased(draw),
        "mistral": lambda draw: plain(draw) | {"sliding_window": draw.choice([None, None, 8])},
        "ministral3": ministral3,
        "mixtral": lambda draw: plain(draw) | experts(draw),
        "qwen2": divided,
        "qwen3": plain,
        "qwen3_moe": lambda draw: plain(draw) | experts(draw) | {"moe_intermediate_size": 64},
        "gemma3": gemma3,
        "gemma4": lambda draw: {"final_logit_softcapping": draw.choice([None, 30.0])},
        "gemma4_moe": lambda _: {"moe_intermediate_size": 64},
        "phi3": phi3,
        "olmo2": divided,
        "olmo3": olmo3,
        "granite": granite,
        "smollm3": smollm3,
        "gpt_oss": gpt_oss,
        "lfm2": lambda draw: {
            "hidden_size": 64,
            "num_attention_heads": 4,
            "head_dim": 16,
            "num_key_value_heads": draw.choice([1, 2]),
        },
        "qwen3_5": linear,
        "qwen3_5_moe": lambda draw: (
            linear(draw) | {"moe_intermediate_size": 64, "num_experts_per_tok": draw.randint(1, 3)}
        ),
        "qwen3_next": lambda draw: (
            linear(draw) | {"moe_intermediate_size": 64, "num_experts_per_tok": draw.randint(1, 3)}
        ),
        "granitemoehybrid": granite_hybrid,
    }
)
OF_FILES = ("dtype", "quantization", "model_type", "max_position_embeddings", "has_parts_apart")
"""Fields that may differ between a file and its checkpoint."""
OF_OWN_SIZES = frozenset({"gemma4", "gemma4_moe"})
WITH_FACTORS = ("llama", "mistral", "mixtral", "smollm3")
WITH_JOINED_EXPERTS = ("gemma4_moe", "qwen3_5_moe", "qwen3_next")
WITH_MTP = ("qwen3_5", "qwen3_5_moe", "qwen3_next")


def drawn(seed: int) -> Case:
    """Return a case; families come in turns."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    family = list(FAMILIES)[seed % len(FAMILIES)]
    fields: dict[str, Any] = ({"vocab_size": 320} if family in OF_OWN_SIZES else sizes(draw)) | FAMILIES[family](draw)
    switches = ["--no-mtp"] if family in WITH_MTP else []
    if draw.random() < 0.5:
        switches.append("--fuse-qkv")
    if family in WITH_JOINED_EXPERTS and draw.random() < 0.5:
        switches.append("--fuse-gate-up-exps")
    if draw.random() < 0.3:
        switches += ["--split-max-tensors", str(draw.choice([5, 9]))]
    of_ollama = family == "gemma3" and draw.random() < 0.5
    if of_ollama:  # whose files say the kind of each layer
        switches = [each for each in switches if each == "--fuse-qkv"]
        fields |= {"layer_types": [draw.choice([FULL, SLIDING]) for _ in fields["layer_types"]]}
    return Case(
        family=family,
        fields=fields,
        kind=draw.choice(TYPES),
        switches=switches,
        rung=rung_of(family, fields),
        of_ollama=of_ollama,
    )


def rung_of(family: str, fields: Mapping[str, Any]) -> str | None:
    """Return the reason of `NOT_CARRIED` for which a file cannot be as its checkpoint; None: there is none."""
    usual = [int((layer + 1) % 4 != 0) for layer in range(fields.get("num_hidden_layers", 0))]
    if fields.get("no_rope_layers", usual) != usual:
        return "layers without positions"
    if fields.get("rope_parameters", {}).get("rope_type") == "llama3" and family not in WITH_FACTORS:
        return "llama3"
    return "windows" if family == "mistral" and fields["sliding_window"] else None


def as_ollama(path: Path, case: Case) -> None:
    """Write a file of Gemma 3 anew with the keys that Ollama's converter writes."""
    reader, new = gguf.GGUFReader(path), path.with_name("new")
    writer = gguf.GGUFWriter(new, "gemma3")
    left_out = ("GGUF.", "general.architecture", "gemma3.rope.freq_base", "gemma3.rope.dimension_count")
    for key, field in reader.fields.items():
        if not key.startswith(left_out):
            item = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], item)
    for name, kind in {"global": FULL, "local": SLIDING}.items():
        theta = case.fields["rope_parameters"][kind]["rope_theta"]
        writer.add_float32(f"gemma3.rope.{name}.freq_base", theta)
    writer.add_array(
        "gemma3.attention.sliding_window_pattern", [each == SLIDING for each in case.fields["layer_types"]]
    )
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    new.rename(path)


def rounded(tensor: torch.Tensor, kind: str, *, has_columns_first: bool) -> torch.Tensor:
    """Return the numbers that a type keeps; experts of gpt-oss have the columns of files as rows."""
    if has_columns_first and tensor.dim() == 3:
        return rounded(tensor.mT.contiguous(), kind, has_columns_first=False).mT
    if kind == "f32" or tensor.dim() < 2:
        return tensor
    if kind == "q8_0" and tensor.shape[-1] % 32 == 0:
        of = gguf.GGMLQuantizationType.Q8_0
        rows = tensor.reshape(-1, tensor.shape[-1]).numpy()
        return torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(rows, of), of)).reshape(tensor.shape)
    return tensor.to(torch.bfloat16 if kind == "bf16" else torch.float16).float()


def save(case: Case, folder: Path, seed: int) -> Any:
    """Save a drawn checkpoint with weights that its type keeps; return the `transformers` model."""
    save_tiny(case.family, folder, seed=seed, **case.fields)
    save_tiny_tokenizer(folder)
    path = folder / "model.safetensors"
    tensors = {
        name: rounded(each, case.kind, has_columns_first=case.family == "gpt_oss").contiguous()
        for name, each in load_file(path).items()
    }
    save_file(tensors, path, metadata={"format": "pt"})
    twin: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if case.family == "granitemoehybrid":  # the converter knows the kinds of layers of published checkpoints
        config = folder / "config.json"
        published = config.read_text().replace(f'"{LINEAR}"', '"mamba"').replace(f'"{FULL}"', '"attention"')
        config.write_text(published)
    return twin.eval()


class Converter:
    """The running converter of llama.cpp."""

    def __init__(self, source: Path) -> None:
        """Start it."""
        self._process = subprocess.Popen(
            [sys.executable, "-B", str(Path(__file__).with_name("convert.py")), str(source)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def convert(self, folder: Path, case: Case) -> Path:
        """Return the file of a checkpoint, of a split one the first part."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        arguments = [str(folder), "--outfile", str(folder / "model.gguf"), "--outtype", case.kind, *case.switches]
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        answer = next((line for line in self._process.stdout if line.startswith("answer: ")), "answer: ended")
        assert answer == 'answer: ""\n', answer
        return next(iter(sorted(folder.glob("*.gguf"))))

    def close(self) -> None:
        """End it."""
        with self._process:
            self._process.kill()


@pytest.fixture(scope="module")
def converter(llama_cpp: Path) -> Iterator[Converter]:
    """The converter, which needs packages of the test group alone."""
    made = Converter(llama_cpp)
    yield made
    made.close()


def same_configuration(ours: ModelConfig, theirs: ModelConfig) -> Iterator[str]:
    """Yield how two configurations differ, but for dtypes and the names of families."""
    for name in ours.__slots__:
        found, right = getattr(ours, name), getattr(theirs, name)
        if name == "ropes":
            yield from same_frequencies(ours, theirs)
        elif name not in OF_FILES and found != right:
            yield f"`{name}` is {found}, not {right}"


def same_frequencies(ours: ModelConfig, theirs: ModelConfig) -> Iterator[str]:
    """Yield the layers whose positions rotate otherwise."""
    for layer, pair in enumerate(zip(ours.ropes, theirs.ropes, strict=True)):
        tables: list[torch.Tensor | None] = []
        for config, each in zip((ours, theirs), pair, strict=True):
            if each is None:
                tables.append(None)
                continue
            dim = each.rotary_dim or config.heads_of(layer).head_dim
            periods = each.theta ** (torch.arange(0, dim, 2) / dim)
            of = [each.scaling.frequencies(periods, theta=each.theta, is_long=is_long) for is_long in (False, True)]
            tables.append(torch.cat([*of, torch.tensor([each.scaling.attention_factor])]))
        found, right = tables
        if (found is None) != (right is None) or (
            found is not None and right is not None and not torch.allclose(found, right, rtol=1e-5, atol=0)
        ):
            yield f"layer {layer} rotates by {pair[0]}, not {pair[1]}"


def differences(case: Case, path: Path, folder: Path, twin: Any) -> Iterator[str]:
    """Yield how a file differs from its checkpoint, and from `transformers`."""
    yield from same_configuration(read_checkpoint_config(path), read_checkpoint_config(folder))
    ours, right = (load_model(each, device=CPU, dtype=torch.float32, quantization="none") for each in (path, folder))
    weights = dict(right.named_parameters())
    for name, found in ours.named_parameters():
        exact = found.dim() > 1
        if not torch.allclose(found, weights[name], rtol=0, atol=0 if exact else 1e-6):
            yield f"weight `{name}`"
    ids = torch.tensor([PROMPT])
    scores = []
    with torch.inference_mode():
        for _ in range(NUM_TOKENS):
            scores.append(twin(ids, use_cache=False).logits[0, -1])
            ids = torch.cat([ids, scores[-1].argmax().view(1, 1)], 1)
        positions = torch.arange(ids.shape[1] - 1) + ours.first_position(ids.shape[1])
        logits = ours(ids[0, :-1], positions, CausalView())[len(PROMPT) - 1 :]
    tokens, expected = logits.argmax(-1).tolist(), ids[0, len(PROMPT) :].tolist()
    margins = [float(row.max() - row[token]) for row, token in zip(scores, tokens, strict=True)]
    if max(margins) > TIE:
        yield f"tokens {tokens}, not {expected}, of margins up to {max(margins):.1e}"
    if SERVER and case.kind == "f32":
        theirs = served(path)
        if theirs != expected[: len(theirs)] or not theirs:
            yield f"llama.cpp's tokens are {theirs}, not {expected}"


def served(path: Path) -> list[int]:
    """Return the greedy tokens of llama.cpp's server, up to an end."""
    assert SERVER is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [SERVER, "-m", str(path), "--port", str(port), "-c", "256", "-np", "1", "-t", "1", "--no-warmup"]
    command += ["-ctk", "f32", "-ctv", "f32"]  # as `transformers` keeps them
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    body = {"prompt": PROMPT, "n_predict": NUM_TOKENS, "temperature": 0, "return_tokens": True, "cache_prompt": False}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/completion",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(request, timeout=60) as reply:  # noqa: S310 - our own server
                    return [int(each) for each in json.load(reply)["tokens"]]
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    return []
                time.sleep(0.1)
    finally:
        process.kill()
        process.wait()


def wrong(seeds: Sequence[int], converter: Converter, folder: Path) -> list[str]:
    """Return what differs without a reason, a draw each."""
    found = []
    for seed in seeds:
        case, place = drawn(seed), folder / str(seed)
        try:
            twin = save(case, place, seed)
            path = converter.convert(place, case)
            if case.of_ollama:
                as_ollama(path, case)
            differs = list(differences(case, path, place, twin))
        except Exception as error:  # noqa: BLE001 - refusals are differences too
            differs = [f"{type(error).__name__}: {error}"[:300]]
        if differs and case.rung not in NOT_CARRIED:
            found.append(f"draw {seed}: {'; '.join(differs)[:400]} of {case}")
    return found


def test_a_handful_of_converted_checkpoints_is_as_transformers_has_them(
    converter: Converter, tmp_path: Path, figure: Callable[[str, int, Sequence[str]], None]
) -> None:
    seeds = range(3)
    figure("converter", len(seeds), wrong(seeds, converter, tmp_path))


@pytest.mark.full
def test_converted_checkpoints_are_as_transformers_has_them(
    converter: Converter, tmp_path: Path, figure: Callable[[str, int, Sequence[str]], None]
) -> None:
    seeds = range(300)
    figure("converter", len(seeds), wrong(seeds, converter, tmp_path))
