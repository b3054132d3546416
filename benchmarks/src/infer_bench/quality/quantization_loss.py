"""The quality lost with quantized weights: the loss on a text that the model was not trained on.

    uv run infer-bench quantization-loss --text tinyshakespeare.txt
    uv run infer-bench quantization-loss --text tinyshakespeare.txt --quantization none int8 --most int8=1.01

By default the demo model, and the last tenth of the text that `examples/train_demo.py` trained it on the rest of. The
loss is the mean cross entropy in nats per token; each window of the model's context starts anew. Each quantization
loads the checkpoint as an engine does, packed for the device, and reads the same windows. With `--most` a ratio that is
larger fails.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from infer_bench.limits import Limit, judge
from infer_bench.results import Columns, argument_parser, columns_table, save
from infer_bench.weight_memory import weight_bytes
from infer_models import CausalLM, CausalView, ModelConfig, load_model
from infer_models.hub import resolve_checkpoint
from infer_models.text import Tokenizer

PLAIN = "none"
"""The quantization of weights that stay as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The result of one quantization.

    Attributes:
        nats_per_token: mean cross entropy.
        ratio: to the loss of the first quantization.
        weight_bytes: what the model's weights take.
    """

    nats_per_token: float
    ratio: float
    weight_bytes: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute the losses, print and save them; return 1 where a ratio is larger than it may be."""
    args = read_arguments(arguments)
    folder = resolve_checkpoint(args.model)
    context = args.context or ModelConfig.from_folder(folder).max_position_embeddings
    text = held_out_part(args.text.read_text(encoding="utf-8"))
    ids = torch.tensor(Tokenizer.from_folder(folder).encode(text, add_special_tokens=False)[: args.tokens])
    if len(ids) < 2:
        print(f"`--text {args.text}` has {len(ids)} held-out tokens; a loss needs two", file=sys.stderr)
        return 2
    losses: dict[str, Loss] = {}
    for quantization in args.quantization:
        model = load_packed(folder, quantization, device=torch.device(args.device))
        nats = held_out_loss(model, ids, context=context)
        first = next(iter(losses.values()), None)
        ratio = nats / first.nats_per_token if first else 1.0
        losses[quantization] = Loss(nats_per_token=nats, ratio=ratio, weight_bytes=weight_bytes(model))
    print(f"\n{args.model or 'the demo model'}, {len(ids)} held-out tokens in windows of {context}\n")
    print(loss_table(losses))
    found = {quantization: asdict(loss) for quantization, loss in losses.items()}
    facts = {"model": args.model, "text": args.text.name, "num_tokens": len(ids), "context": context}
    save(f"quantization-loss-{Path(folder).name}", {**facts, "losses": found}, args)
    return judge(
        [Limit(what=f"loss of {name}", value=losses[name].ratio, most=most) for name, most in args.most.items()]
    )


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's flags, checked; `most` becomes ratios by quantization."""
    parser = argument_parser(__doc__, quick="2,048 tokens")
    parser.add_argument("--text", type=Path, required=True, help="its last tenth is read")
    parser.add_argument("--model", help="folder or Hub id; left out: the demo model")
    parser.add_argument(
        "--quantization", nargs="+", default=[PLAIN, "int8", "int4"], help="of the weights; ratios are to the first"
    )
    parser.add_argument("--most", nargs="+", default=[], metavar="QUANTIZATION=RATIO", help="fail above that ratio")
    parser.add_argument("--context", type=int, help="tokens of a window; left out: the model's context")
    parser.add_argument("--tokens", type=int, help="read only so many")
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
    if args.quick:
        args.tokens = min(args.tokens or 2048, 2048)
    return args


def held_out_part(text: str) -> str:
    """Return the last tenth of a text, from a paragraph on, as `examples/train_demo.py` holds it out."""
    most = len(text) * 9 // 10
    gap = text.rfind("\n\n", 0, most)
    return text[most if gap < 0 else gap + 2 :]


def load_packed(folder: Path, quantization: str, *, device: torch.device) -> CausalLM:
    """Return the model in `folder` as an engine computes it."""
    dtype: torch.dtype = getattr(torch, ModelConfig.from_folder(folder).dtype)
    keywords: dict[str, Any] = {} if quantization == PLAIN else {"quantization": quantization}
    model = load_model(folder, device=device, dtype=dtype, **keywords)
    model.prepack()
    return model


@torch.inference_mode()
def held_out_loss(model: CausalLM, ids: Tensor, *, context: int) -> float:
    """Return the mean loss in nats per token over the text `ids`, [tokens]; each window of `context` starts anew."""
    ids = ids.to(next(iter(model.parameters())).device)
    total = 0.0
    for start in range(0, len(ids) - 1, context):
        row = ids[start : start + context + 1]
        length = len(row) - 1
        logits: Tensor = model(row[:-1], torch.arange(length, device=row.device), CausalView())
        total += functional.cross_entropy(logits.float(), row[1:], reduction="sum").item()
    return total / (len(ids) - 1)


def loss_table(losses: Mapping[str, Loss]) -> str:
    """Return a row for each quantization."""
    first = next(iter(losses.values()))
    columns: Columns = {
        "quantization": lambda row: row[0],
        "nats per token": lambda row: f"{row[1].nats_per_token:.4f}",
        "ratio": lambda row: f"{row[1].ratio:.4f}",
        "weights": lambda row: f"{row[1].weight_bytes / 1e6:.2f} MB",
        "ratio of weights": lambda row: f"{row[1].weight_bytes / first.weight_bytes:.3f}",
    }
    return columns_table(columns, losses.items())
