"""Trains a character-level GPT on one text file and saves a checkpoint that the engine loads.

    uv run --with matplotlib python examples/nanogpt/train.py --text tinyshakespeare.txt --out nanogpt

The model is the one of Karpathy's "Let's build GPT", 2023, and the defaults are its hyper-parameters: with the 65
characters of Tiny Shakespeare it has 209,729 parameters. The first nine tenths of the text are trained on, the last
tenth is held out. The folder also gets `loss.png`, the curve of both losses, and `losses.json`, its numbers.

Rows are short and the model is small: one thread is as fast as several, and much faster on a busy machine.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib import pyplot as plt
from tokenizers import Tokenizer, decoders, models
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from infer_kernels import QKNorm, Rotary
from infer_models import AttentionSpec, CausalLM, load_model, save_model
from infer_models.checkpoint import draw_weights

INK, FADED, TRAINING, HELD_OUT = "#1f2933", "#9aa5b1", "#7b8794", "#c2410c"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is trained, and how.

    Attributes:
        layers: of the model, each with attention and MLP.
        heads: of each attention.
        hidden_size: of the residual stream; the heads share it out.
        context: characters that the model sees.
        steps: updates of the weights.
        batch_size: rows of `context` characters in an update.
        learning_rate: of AdamW, the same from the first step to the last.
        evaluate_every: steps between two measurements of the losses.
        evaluation_rows: rows that each loss is measured on, the same ones every time.
        seed: of the first weights, and of the rows that are drawn.
    """

    layers: int = 4
    heads: int = 4
    hidden_size: int = 64
    context: int = 32
    steps: int = 5000
    batch_size: int = 16
    learning_rate: float = 1e-3
    evaluate_every: int = 250
    evaluation_rows: int = 3200
    seed: int = 1337


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Mean losses after `step` updates, in nats per character."""

    step: int
    training_loss: float
    held_out_loss: float


class EqualRows:
    """Attends causally within rows of one length that lie end to end in the flat batch. Differentiable.

    Implements `infer_models.KVCacheView`. `infer_models.CausalView` takes rows of any lengths, one after another; rows
    of one length go through attention together.
    """

    def __init__(self, length: int) -> None:
        """Take the batch as rows of `length` tokens."""
        self._length = length

    def attend(
        self,
        layer: int,
        qkv: Tensor,
        spec: AttentionSpec,
        *,
        rotary: Rotary | None = None,
        norm: QKNorm | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attend: qkv [rows * length, 3 * heads, head_dim] -> [rows * length, heads, head_dim].

        Raises:
            ValueError: the model rotates or norms its queries and keys or has sinks, which a NanoGPT does not.
        """
        if rotary is not None or norm is not None or sinks is not None:
            raise ValueError(
                f"layer {layer} has `rotary`, `norm` or `sinks`, which `EqualRows` does not apply: use `CausalView`."
            )
        rows = qkv.view(-1, self._length, *qkv.shape[1:]).transpose(1, 2)
        q, k, v = torch.split(rows, [spec.q_heads, spec.kv_heads, spec.kv_heads], dim=1)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=spec.scale)
        return attended.transpose(1, 2).flatten(0, 1)


def main() -> None:
    """Train, then write the checkpoint, the losses and their curve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="the text to train on, in UTF-8")
    parser.add_argument("--out", type=Path, default=Path("nanogpt"), help="folder for the checkpoint")
    parser.add_argument("--steps", type=int, default=Recipe().steps)
    parser.add_argument("--seed", type=int, default=Recipe().seed)
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.monotonic()
    recipe = Recipe(steps=options.steps, seed=options.seed)
    evaluations = train_checkpoint(options.text.read_text(encoding="utf-8"), options.out, recipe)
    for each in evaluations:
        print(f"step {each.step:5}: training {each.training_loss:.4f}, held out {each.held_out_loss:.4f}")
    print(f"{time.monotonic() - started:.0f} s; checkpoint, `losses.json` and `loss.png` are in {options.out}")


def train_checkpoint(text: str, out: Path, recipe: Recipe, *, shows_progress: bool = True) -> list[Evaluation]:
    """Train on nine tenths of `text`, write everything into the folder `out`, and return the losses.

    Raises:
        ValueError: a tenth of the text is no longer than the context.
    """
    tokenizer = character_tokenizer(text)
    ids = torch.tensor(tokenizer.encode(text).ids)
    cut = len(ids) * 9 // 10
    training_ids, held_out_ids = ids[:cut], ids[cut:]
    if len(held_out_ids) <= recipe.context:
        raise ValueError(
            f"`text` has {len(ids)} characters, and the tenth that is held out must be longer than the `context` of "
            f"{recipe.context}: give a text of more than {10 * (recipe.context + 1)}."
        )
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "config.json").write_text(json.dumps(config_fields(tokenizer, recipe), indent=2) + "\n", encoding="utf-8")
    model = load_model(out, device=torch.device("cpu"), dtype=torch.float32, load_format="dummy").requires_grad_()
    draw_weights(model, seed=recipe.seed)
    evaluations = train(model, training_ids, held_out_ids, recipe, shows_progress=shows_progress)
    save_model(model, out)
    result = {"recipe": asdict(recipe), "evaluations": [asdict(each) for each in evaluations]}
    (out / "losses.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    draw_losses(evaluations, out / "loss.png")
    return evaluations


def character_tokenizer(text: str) -> Tokenizer:
    """Return a tokenizer with a token for each character of `text`, in the order of Unicode; others have none."""
    vocabulary = {character: token_id for token_id, character in enumerate(sorted(set(text)))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def config_fields(tokenizer: Tokenizer, recipe: Recipe) -> dict[str, object]:
    """Return what `config.json` says. No token ends a text: it names no `eos_token_id`."""
    return {
        "architectures": ["NanoGPT"],
        "model_type": "nanogpt",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": recipe.hidden_size,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": recipe.heads,
        "max_position_embeddings": recipe.context,
        "dtype": "float32",
    }


def train(
    model: CausalLM, training_ids: Tensor, held_out_ids: Tensor, recipe: Recipe, *, shows_progress: bool = True
) -> list[Evaluation]:
    """Update `model` `recipe.steps` times; return its losses before, on the way and after."""
    draw = torch.Generator().manual_seed(recipe.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, fused=True)
    evaluations: list[Evaluation] = []
    with tqdm(range(recipe.steps + 1), unit="step", disable=not shows_progress) as bar:
        for step in bar:
            if step % recipe.evaluate_every == 0 or step == recipe.steps:
                losses = evaluate(model, training_ids, recipe), evaluate(model, held_out_ids, recipe)
                evaluations.append(Evaluation(step=step, training_loss=losses[0], held_out_loss=losses[1]))
                bar.set_postfix(training=f"{losses[0]:.3f}", held_out=f"{losses[1]:.3f}")
            if step < recipe.steps:
                loss = mean_loss(model, draw_rows(training_ids, recipe.batch_size, recipe.context, draw))
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
                optimizer.step()
    return evaluations


def draw_rows(ids: Tensor, num_rows: int, context: int, draw: torch.Generator) -> Tensor:
    """Return rows [num_rows, context + 1] of `ids` [characters], from anywhere in it."""
    starts = torch.randint(len(ids) - context, (num_rows, 1), generator=draw)
    return ids[starts + torch.arange(context + 1)]


def mean_loss(model: CausalLM, rows: Tensor) -> Tensor:
    """Return the mean cross-entropy, in nats, of the characters of `rows` [rows, length + 1] but each row's first."""
    num_rows, length = rows.shape[0], rows.shape[1] - 1
    logits = model(rows[:, :-1].flatten(), torch.arange(length).repeat(num_rows), EqualRows(length))
    return functional.cross_entropy(logits, rows[:, 1:].flatten())


@torch.no_grad()
def evaluate(model: CausalLM, ids: Tensor, recipe: Recipe) -> float:
    """Return the mean loss over rows of `ids` [characters] that are the same ones at every call."""
    draw = torch.Generator().manual_seed(recipe.seed + 1)
    rows = draw_rows(ids, recipe.evaluation_rows, recipe.context, draw)
    total = sum((mean_loss(model, part).item() * len(part) for part in torch.split(rows, 400)), start=0.0)
    return total / len(rows)


def draw_losses(evaluations: list[Evaluation], path: Path) -> None:
    """Draw both losses over the steps."""
    mpl.use("Agg")
    steps = [each.step for each in evaluations]
    lines = {
        "training text": (TRAINING, [each.training_loss for each in evaluations]),
        "held-out text": (HELD_OUT, [each.held_out_loss for each in evaluations]),
    }
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for label, (color, losses) in lines.items():
        axes.plot(
            steps,
            losses,
            color=color,
            linewidth=2,
            marker="o",
            markersize=3.5,
            label=f"{label}: {losses[0]:.2f} to {losses[-1]:.2f}",
        )
    axes.set_xlabel("step", color=INK, fontsize=12)
    axes.set_ylabel("loss (nats per character)", color=INK, fontsize=12)
    axes.set_xlim(0, max(steps[-1], 1))
    axes.tick_params(colors=INK, labelsize=11)
    axes.grid(color=FADED, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=12, labelcolor=INK)
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main()
