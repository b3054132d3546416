"""`examples/train_demo.py` on a play made up here: the loss falls, and what it writes is a checkpoint."""

import math
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from infer_models import CausalView, load_model
from infer_models.text import Tokenizer

SCRIPT = Path(__file__).parents[4] / "examples" / "train_demo.py"
OPTIONS = {"steps": 60, "evaluate-every": 20, "layers": 1, "hidden-size": 64, "intermediate-size": 128, "context": 64}


def write_play(path: Path) -> None:
    draw = random.Random(0)  # noqa: S311 - no secrets
    names, words = ["KING", "QUEEN", "FOOL"], ["the", "crown", "is", "mine", "and", "thine", "alas"]
    speeches = [f"{draw.choice(names)}:\n{' '.join(draw.choices(words, k=12))}." for _ in range(400)]
    path.write_text("\n\n".join(speeches) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("demo")
    write_play(folder / "play.txt")
    options = [f"--{name}={value}" for name, value in OPTIONS.items()]
    command = [sys.executable, str(SCRIPT), "--data", str(folder / "play.txt"), "--out", str(folder / "out"), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return folder / "out", result.stdout


def test_the_held_out_loss_falls(trained: tuple[Path, str]) -> None:
    folder, printed = trained
    found = re.search(r"held-out loss ([\d.]+) nats per token, ([\d.]+) bits per byte", printed)
    assert found is not None
    untrained = math.log(Tokenizer.from_folder(folder).vocab_size)
    assert float(found[1]) < 0.7 * untrained


def test_the_checkpoint_is_the_same_model_to_transformers(trained: tuple[Path, str]) -> None:
    folder, _ = trained
    ids = torch.tensor(Tokenizer.from_folder(folder).encode("KING:\nthe crown is"))
    ours = load_model(folder, device=torch.device("cpu"), dtype=torch.float32)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        expected = theirs(ids[None]).logits[0]
    torch.testing.assert_close(ours(ids, torch.arange(len(ids)), CausalView()), expected, atol=1e-4, rtol=0)


def test_the_tokenizer_is_saved_without_dropout(trained: tuple[Path, str]) -> None:
    tokenizer = Tokenizer.from_folder(trained[0])
    assert len({tuple(tokenizer.encode("QUEEN:\nalas, the crown is thine")) for _ in range(20)}) == 1


def test_the_card_gives_the_command_and_the_losses(trained: tuple[Path, str]) -> None:
    folder, printed = trained
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "python examples/train_demo.py --data play.txt --hidden-size 64" in card
    assert printed.split("held-out loss ")[1].split(":")[0] in card
    assert card.count("```text\n") == 3


def test_a_chat_is_a_scene(trained: tuple[Path, str]) -> None:
    tokenizer = Tokenizer.from_folder(trained[0])
    messages = [{"role": "system", "content": "A garden."}, {"role": "user", "content": " Who is there? "}]
    expected = "Chorus:\nA garden.<|end|>\n\nJULIET:\nWho is there?<|end|>\n\nROMEO:\n"
    assert tokenizer.render_chat(messages) == expected
