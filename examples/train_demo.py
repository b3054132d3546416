"""Trains the bundled demo model: a small Llama that writes lines of a play, and in a chat answers as one of its people.

    uv run python examples/train_demo.py --data tinyshakespeare.txt --out demo

The data is a play: `NAME:` on a line of its own, then what that person says, then an empty line. Nine tenths of it are
trained on, the last tenth is held out. Training ends when the held-out loss stops improving; the best weights are kept.

The text is small, and two things keep the model from learning it by heart: dropout, and BPE-dropout (Provilkov et al.,
2020), which tokenizes every epoch differently. In a part of each epoch every speech ends with `<|end|>`, as in the chat
template: the model learns to end its answer in a chat, and to go on with the play elsewhere.

It computes in bfloat16 beside fp32 weights that the optimizer updates. One thread is the fastest on a busy machine.
"""

import argparse
import json
import math
import random
import re
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tokenizers import Encoding, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from infer_models import CausalLM, CausalView, load_model, save_model

END = "<|end|>"
CHAT_TEMPLATE = (
    "{%- set names = {'user': 'JULIET', 'assistant': 'ROMEO'} -%}\n"
    "{%- for message in messages -%}\n"
    "{{- names.get(message.role, 'Chorus') + ':\\n' + message.content | trim + '<|end|>\\n\\n' -}}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}{{- 'ROMEO:\\n' -}}{%- endif -%}\n"
)
SAMPLE_PROMPTS = ("ROMEO:\n", "KING RICHARD III:\n", f"JULIET:\nWho are you, and what do you want?{END}\n\nROMEO:\n")
SPEECH_END = re.compile(r"\n\n+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is trained, and how; the defaults made the bundled model."""

    vocab_size: int = 1024
    hidden_size: int = 256
    intermediate_size: int = 704
    layers: int = 4
    q_heads: int = 4
    kv_heads: int = 2
    context: int = 1024
    batch_size: int = 2
    steps: int = 2400
    learning_rate: float = 2e-3
    warmup_steps: int = 100
    weight_decay: float = 0.1
    dropout: float = 0.15
    bpe_dropout: float = 0.1
    chat_share: float = 0.3
    evaluate_every: int = 150
    patience: int = 4
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Losses after `step` steps, in nats per token; the training loss is a recent mean, with dropout."""

    step: int
    training_loss: float
    held_out_loss: float


def main() -> None:
    """Train, then write a checkpoint folder with its model card."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the text to train on")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the checkpoint")
    for name in ("steps", "layers", "hidden_size", "intermediate_size", "context", "evaluate_every"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(Recipe(), name))
    options = vars(parser.parse_args())
    data, out = options.pop("data"), options.pop("out")
    recipe = Recipe(**options)
    torch.set_num_threads(1)
    torch.manual_seed(recipe.seed)
    training_text, held_out_text = split(data.read_text(encoding="utf-8"))
    tokenizer = train_tokenizer(training_text, recipe.vocab_size)
    out.mkdir(parents=True, exist_ok=True)
    write_descriptions(out, tokenizer, recipe)
    model = load_model(out, device=torch.device("cpu"), dtype=torch.bfloat16, load_format="dummy")
    held_out_ids = tokenizer.encode(held_out_text).ids
    started = time.monotonic()
    evaluations = train(model, training_rows(tokenizer, training_text, recipe), torch.tensor(held_out_ids), recipe)
    minutes = (time.monotonic() - started) / 60
    save_model(model, out)
    best = min(evaluations, key=lambda evaluation: evaluation.held_out_loss)
    bits_per_byte = best.held_out_loss * len(held_out_ids) / len(held_out_text.encode()) / math.log(2)
    facts = {
        "parameters": f"{model.num_parameters:,}",
        "architecture": f"`llama`: {recipe.layers} layers, hidden {recipe.hidden_size}, {recipe.q_heads} query heads, "
        f"{recipe.kv_heads} key-value heads, tied embeddings",
        "vocabulary": f"byte-level BPE, {tokenizer.get_vocab_size()} tokens, learned from the training text",
        "context": f"{recipe.context} tokens",
        "weights": "bfloat16, safetensors",
        "data": f"`{data.name}`, {data.stat().st_size:,} bytes, of which the last tenth is held out",
        "command": f"`{command_line(data, recipe)}`",
        "training": f"{evaluations[-1].step} steps of {recipe.batch_size} x {recipe.context} tokens, AdamW, learning "
        f"rate {recipe.learning_rate:g}, weight decay {recipe.weight_decay:g}, dropout {recipe.dropout:g}, BPE-dropout "
        f"{recipe.bpe_dropout:g}; {minutes:.0f} minutes on one processor core; best at step {best.step}",
        "loss, training text": f"{best.training_loss:.4f} nats per token, with both dropouts",
        "loss, held-out text": f"{best.held_out_loss:.4f} nats per token, {bits_per_byte:.4f} bits per byte",
    }
    write_card(out, facts, [sample(model, tokenizer, prompt, context=recipe.context) for prompt in SAMPLE_PROMPTS])
    print(f"held-out loss {best.held_out_loss:.4f} nats per token, {bits_per_byte:.4f} bits per byte: {out}")


def split(text: str) -> tuple[str, str]:
    """Return the first nine tenths and the last tenth, cut between two speeches."""
    cut = text.rfind("\n\n", 0, len(text) * 9 // 10) + 2
    return text[:cut], text[cut:]


def train_tokenizer(text: str, vocab_size: int) -> Tokenizer:
    """Return a byte-level BPE tokenizer of at most `vocab_size` tokens, learned from `text`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return tokenizer


def write_descriptions(out: Path, tokenizer: Tokenizer, recipe: Recipe) -> None:
    """Write all files of the checkpoint but weights and card."""
    end_id = tokenizer.token_to_id(END)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": recipe.hidden_size,
        "intermediate_size": recipe.intermediate_size,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": recipe.q_heads,
        "num_key_value_heads": recipe.kv_heads,
        "head_dim": recipe.hidden_size // recipe.q_heads,
        "hidden_act": "silu",
        "max_position_embeddings": recipe.context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": end_id,
    }
    generation = {"eos_token_id": end_id}
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "model_max_length": recipe.context,
        "clean_up_tokenization_spaces": False,
    }
    files = {"config": config, "generation_config": generation, "tokenizer_config": tokenizer_config}
    for name, fields in files.items():
        (out / f"{name}.json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    tokenizer.save(str(out / "tokenizer.json"))


def training_rows(tokenizer: Tokenizer, text: str, recipe: Recipe) -> Iterator[Tensor]:
    """Yield rows [context + 1] of token ids for ever, each from the beginning of a speech on."""
    draw = random.Random(recipe.seed)  # noqa: S311 - no secrets
    speeches = SPEECH_END.split(text.strip())
    while True:
        play = "".join(as_play_or_chat(speeches, draw, recipe.chat_share))
        encoding = encode_with_dropout(tokenizer, play, recipe.bpe_dropout)
        ids = torch.tensor(encoding.ids)
        first_characters = [start for start, _ in encoding.offsets]
        beginnings = [0, *(bisect_left(first_characters, match.end()) for match in SPEECH_END.finditer(play))]
        usable = [start for start in beginnings if start + recipe.context < len(ids)]
        for start in draw.sample(usable, k=min(len(usable), max(1, len(ids) // recipe.context))):
            yield ids[start : start + recipe.context + 1]


def as_play_or_chat(speeches: list[str], draw: random.Random, chat_share: float) -> Iterator[str]:
    """Yield all speeches in order, with what comes after them; some stretches of them with the chat's end of a turn."""
    position = 0
    while position < len(speeches):
        num_speeches = draw.randint(2, 40)
        separator = f"{END}\n\n" if draw.random() < chat_share else "\n\n"
        yield from (speech + separator for speech in speeches[position : position + num_speeches])
        position += num_speeches


def encode_with_dropout(tokenizer: Tokenizer, text: str, dropout: float) -> Encoding:
    """Tokenize `text`, each merge of the vocabulary left out with probability `dropout`."""
    model = tokenizer.model
    model.dropout = dropout
    tokenizer.model = model
    encoding = tokenizer.encode(text)
    model.dropout = None
    tokenizer.model = model
    return encoding


def train(model: CausalLM, rows: Iterator[Tensor], held_out_ids: Tensor, recipe: Recipe) -> list[Evaluation]:
    """Train until the held-out loss stops improving; leave the best weights in `model`."""
    parameters = list(model.requires_grad_().parameters())
    masters = [parameter.detach().float() for parameter in parameters]
    groups = [
        {"params": [master for master in masters if master.dim() > 1], "weight_decay": recipe.weight_decay},
        {"params": [master for master in masters if master.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.95), fused=True)
    drop_outputs(model, recipe.dropout)
    evaluations: list[Evaluation] = []
    best_loss, best_weights, num_worse = math.inf, copy_of(parameters), 0
    recent_losses: deque[float] = deque(maxlen=recipe.evaluate_every)
    with tqdm(range(1, recipe.steps + 1), unit="step") as bar:
        for step in bar:
            loss = mean_loss(model.train(), torch.stack([next(rows) for _ in range(recipe.batch_size)]))
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate * schedule(step, recipe)
            update(optimizer, masters, parameters)
            recent_losses.append(loss.item())
            if step % recipe.evaluate_every and step < recipe.steps:
                continue
            held_out_loss = evaluate(model.eval(), held_out_ids, recipe.context)
            training_loss = sum(recent_losses) / len(recent_losses)
            evaluations.append(Evaluation(step=step, training_loss=training_loss, held_out_loss=held_out_loss))
            bar.set_postfix(training=f"{training_loss:.3f}", held_out=f"{held_out_loss:.3f}")
            if held_out_loss < best_loss:
                best_loss, best_weights, num_worse = held_out_loss, copy_of(parameters), 0
            elif (num_worse := num_worse + 1) == recipe.patience:
                break
    with torch.no_grad():
        for parameter, weight in zip(parameters, best_weights, strict=True):
            parameter.copy_(weight)
    return evaluations


def copy_of(parameters: list[torch.nn.Parameter]) -> list[Tensor]:
    """Return the values of `parameters` as they are."""
    return [parameter.detach().clone() for parameter in parameters]


def drop_outputs(model: CausalLM, dropout: float) -> None:
    """Drop out, while training, elements of what each attention and each MLP adds to the residual stream."""

    def drop(module: torch.nn.Module, _inputs: object, output: Tensor) -> Tensor:
        return functional.dropout(output, dropout, training=module.training)

    for name, module in model.named_modules():
        if name.endswith(("o_proj", "down_proj")):
            module.register_forward_hook(drop)


def schedule(step: int, recipe: Recipe) -> float:
    """Return the share of the learning rate at `step`: a linear warm-up, then a cosine down to a fiftieth."""
    if step < recipe.warmup_steps:
        return step / recipe.warmup_steps
    done = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done))


@torch.no_grad()
def update(optimizer: torch.optim.Optimizer, masters: list[Tensor], parameters: list[torch.nn.Parameter]) -> None:
    """Step with the gradients of `parameters` on their fp32 `masters`, and round those back."""
    for master, parameter in zip(masters, parameters, strict=True):
        master.grad = None if parameter.grad is None else parameter.grad.float()
        parameter.grad = None
    torch.nn.utils.clip_grad_norm_(masters, 1.0)
    optimizer.step()
    for master, parameter in zip(masters, parameters, strict=True):
        parameter.copy_(master)


def mean_loss(model: CausalLM, rows: Tensor) -> Tensor:
    """Return the mean cross-entropy, in nats, of the tokens of `rows` [rows, length + 1] but the first of each."""
    num_rows, length = rows.shape[0], rows.shape[1] - 1
    positions = torch.arange(length).repeat(num_rows)
    logits = model(rows[:, :-1].flatten(), positions, CausalView([length] * num_rows))
    return functional.cross_entropy(logits.float(), rows[:, 1:].flatten())


@torch.no_grad()
def evaluate(model: CausalLM, ids: Tensor, context: int) -> float:
    """Return the mean loss over the text `ids`, in nats per token; each window of `context` tokens starts anew."""
    total = 0.0
    for start in range(0, len(ids) - 1, context):
        row = ids[start : start + context + 1]
        total += mean_loss(model, row[None]).item() * (len(row) - 1)
    return total / (len(ids) - 1)


@torch.no_grad()
def sample(model: CausalLM, tokenizer: Tokenizer, prompt: str, *, context: int, max_tokens: int = 160) -> str:
    """Return a continuation of `prompt` at temperature 0.8, up to the end of an answer."""
    model.eval()
    generator = torch.Generator().manual_seed(0)
    ids: list[int] = tokenizer.encode(prompt).ids
    num_prompt_tokens = len(ids)
    while len(ids) < min(num_prompt_tokens + max_tokens, context) and ids[-1] != tokenizer.token_to_id(END):
        logits = model(torch.tensor(ids), torch.arange(len(ids)), CausalView(), torch.tensor([len(ids) - 1]))
        ids.append(int(torch.multinomial((logits[0].float() / 0.8).softmax(0), 1, generator=generator)))
    text: str = tokenizer.decode(ids, skip_special_tokens=False)
    return text


def command_line(data: Path, recipe: Recipe) -> str:
    """Return the command that trains by `recipe`: the options that differ from the defaults."""
    usual = asdict(Recipe())
    changed = {name: value for name, value in asdict(recipe).items() if value != usual[name]}
    options = [f"--{name.replace('_', '-')} {value}" for name, value in changed.items()]
    return " ".join(["python examples/train_demo.py --data", data.name, *options])


def write_card(out: Path, facts: dict[str, str], samples: list[str]) -> None:
    """Write the model card: what it is, how it was made, what it reached, how it sounds."""
    table = "\n".join(f"| {name} | {fact} |" for name, fact in facts.items())
    blocks = "\n\n".join(f"```text\n{text.strip()}\n```" for text in samples)
    card = f"""# infer-demo

A small Llama that writes lines of a play, so that an engine has something to run on any machine. It knows nothing else.

| | |
|---|---|
{table}

In a chat the user speaks as Juliet, the model as Romeo, a system message as the Chorus; `{END}` ends a speech there.

Samples at temperature 0.8, prompts included:

{blocks}
"""
    (out / "README.md").write_text(card, encoding="utf-8")


if __name__ == "__main__":
    main()
