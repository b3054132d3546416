"""The recipe of the NanoGPT example, as the optimizer and the model see it while the program trains."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from infer_models import CausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from examples.nanogpt import train as program

NUM_CHARACTERS = 400
TEXT = "".join(chr(0x4E00 + index) for index in range(NUM_CHARACTERS))
"""Characters that are all different, in the order of their ids: an id says where in the text it is from."""


@dataclass(slots=True)
class Seen:
    """What optimizers and models were given.

    Attributes:
        optimizers: by step, the kind of the optimizer and its groups of parameters, with all that it was made with.
        trained: input ids [tokens] of each forward pass with gradients.
        positions: positions [tokens] of each of those.
        evaluated: input ids [tokens] of each forward pass without.
    """

    optimizers: list[tuple[type, list[dict[str, Any]]]] = field(default_factory=list)
    trained: list[Tensor] = field(default_factory=list)
    positions: list[Tensor] = field(default_factory=list)
    evaluated: list[Tensor] = field(default_factory=list)


class Bigrams(torch.nn.Module):
    """The fastest model of language: the next character depends on this one alone."""

    def __init__(self, num_characters: int) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(num_characters, num_characters))

    def forward(self, ids: Tensor, positions: Tensor, view: object) -> Tensor:
        del positions, view
        return self.table[ids]


@contextmanager
def watched() -> Iterator[Seen]:
    """Watch every optimizer and every language model of this process."""
    seen = Seen()

    def note_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
        groups = [{**group, "params": list(group["params"])} for group in optimizer.param_groups]
        seen.optimizers.append((type(optimizer), groups))

    def note_pass(module: torch.nn.Module, inputs: Any) -> None:
        if not isinstance(module, CausalLM | Bigrams):
            return
        if torch.is_grad_enabled():
            seen.trained.append(inputs[0])
            seen.positions.append(inputs[1])
        else:
            seen.evaluated.append(inputs[0])

    handles = [register_optimizer_step_pre_hook(note_step), register_module_forward_pre_hook(note_pass)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def run_program(monkeypatch: pytest.MonkeyPatch, folder: Path, *flags: str) -> None:
    """Run the program on `TEXT`, as its command does."""
    (folder / "text").write_text(TEXT, encoding="utf-8")
    arguments = ["train.py", "--text", str(folder / "text"), "--out", str(folder / "out"), *flags]
    monkeypatch.setattr(sys, "argv", arguments)
    program.main()


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Compute in one thread, as the program does: several wait for each other on a busy machine."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the program trains for two steps."""
    return tmp_path_factory.mktemp("nanogpt")


@pytest.fixture(scope="module")
def seen(folder: Path) -> Seen:
    """What is seen of the two steps."""
    with watched() as seen, pytest.MonkeyPatch.context() as monkeypatch:
        run_program(monkeypatch, folder, "--steps", "2")
    return seen


@pytest.mark.covers("experiments/nanogpt-training")
def test_each_update_is_of_16_rows_of_32_characters(seen: Seen) -> None:
    assert len(seen.trained) == 2
    for ids, positions in zip(seen.trained, seen.positions, strict=True):
        rows = ids.view(16, 32)
        assert torch.equal(rows, rows[:, :1] + torch.arange(32))  # consecutive characters of the text
        assert torch.equal(positions.view(16, 32), torch.arange(32).expand(16, 32))
        assert len(set(rows[:, 0].tolist())) > 8


@pytest.mark.covers("experiments/nanogpt-training")
def test_the_first_nine_tenths_are_trained_on_and_the_last_tenth_is_held_out(seen: Seen) -> None:
    cut = NUM_CHARACTERS * 9 // 10
    assert max(int(ids.max()) for ids in seen.trained) < cut
    evaluated = torch.cat([ids.view(-1, 32) for ids in seen.evaluated])
    is_held_out = evaluated >= cut
    assert torch.equal(is_held_out.any(dim=1), is_held_out.all(dim=1))  # no row has characters of both parts
    # Each evaluation, before and after, has 3,200 rows of each part, and the smaller one has only 8 places for a row.
    assert [int(is_held_out.all(dim=1).sum()), len(evaluated)] == [2 * 3200, 4 * 3200]
    held_out = evaluated[is_held_out.all(dim=1)]
    assert (int(held_out.min()), int(held_out.max())) == (cut, NUM_CHARACTERS - 2)  # the last one is only predicted
    assert int(evaluated[~is_held_out.all(dim=1)].max()) == cut - 2


@pytest.mark.covers("experiments/nanogpt-training")
def test_adamw_updates_all_parameters_at_a_rate_of_one_thousandth(seen: Seen, folder: Path) -> None:
    fields = json.loads((folder / "out" / "config.json").read_text())
    assert [fields[name] for name in ("num_hidden_layers", "num_attention_heads", "hidden_size")] == [4, 4, 64]
    assert fields["max_position_embeddings"] == 32
    for kind, groups in seen.optimizers:
        [group] = groups
        assert kind is torch.optim.AdamW
        assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (1e-3, (0.9, 0.999), 1e-8, 0.01)
        # With 65 characters: an embedding and a head for each of 64 dims, and a bias.
        more = (NUM_CHARACTERS - 65) * (64 + 64 + 1)
        assert sum(parameter.numel() for parameter in group["params"]) == 209_729 + more


@pytest.mark.covers("experiments/nanogpt-training")
def test_the_loop_makes_5000_updates_at_one_rate() -> None:
    ids = torch.arange(650) % 65
    recipe = replace(program.Recipe(), evaluation_rows=16)
    with watched() as seen:
        evaluations = program.train(cast("CausalLM", Bigrams(65)), ids, ids, recipe, shows_progress=False)
    assert {(kind, groups[0]["lr"]) for kind, groups in seen.optimizers} == {(torch.optim.AdamW, 1e-3)}
    assert (len(seen.optimizers), len(seen.trained)) == (5000, 5000)
    assert {ids.shape for ids in seen.trained} == {(16 * 32,)}
    assert [each.step for each in evaluations] == list(range(0, 5001, 250))
    assert evaluations[-1].held_out_loss < 0.1 < evaluations[0].held_out_loss


@pytest.mark.covers("experiments/nanogpt-training")
def test_the_command_trains_by_the_recipe_unless_it_is_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes: list[program.Recipe] = []

    def note(text: str, out: Path, recipe: program.Recipe) -> list[program.Evaluation]:
        del text, out
        recipes.append(recipe)
        return []

    monkeypatch.setattr(program, "train_checkpoint", note)
    run_program(monkeypatch, tmp_path)
    run_program(monkeypatch, tmp_path, "--steps", "7", "--seed", "8")
    assert recipes == [program.Recipe(), program.Recipe(steps=7, seed=8)]
