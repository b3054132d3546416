"""The NanoGPT example: training, its checkpoint in the engine, and the three-request simulation, on a made-up text."""

import json
import random
import string
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from infer_engine import LLM
from infer_models import CausalView, load_model

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from examples.nanogpt.sample import check_characters, continue_text
from examples.nanogpt.simulate import ARRIVALS, Arrival, Simulation, simulate, summary, trace
from examples.nanogpt.train import EqualRows, Evaluation, Recipe, character_tokenizer, train_checkpoint

PAGE = Path(__file__).resolve().parents[1] / "docs" / "nanogpt.md"
CHARACTERS = string.ascii_letters + "\n !$&',-.3:;?"  # as many as the model of 209,729 parameters knows
WORDS = ("ox", "or", "to", "be", "the", "sun", "and", "rain", "fall", "over", "every", "garden")
RECIPE = Recipe(steps=100, evaluate_every=50, evaluation_rows=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A folder that was trained, and the losses on the way."""

    folder: Path
    evaluations: list[Evaluation]


def made_up_text() -> str:
    draw = random.Random(0)  # noqa: S311 - a test's choices
    lines = (" ".join(draw.choices(WORDS, k=6)) for _ in range(400))
    return "\n".join(lines) + CHARACTERS


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("nanogpt")
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the program does: several wait for each other on a busy machine
    evaluations = train_checkpoint(made_up_text(), folder, RECIPE, shows_progress=False)
    torch.set_num_threads(num_threads)
    return Trained(folder=folder, evaluations=evaluations)


@pytest.fixture(scope="module")
def simulation(trained: Trained) -> Simulation:
    return simulate(trained.folder)


@pytest.mark.covers("experiments/nanogpt-training")
def test_training_lowers_both_losses_from_those_of_a_uniform_guess(trained: Trained) -> None:
    before, after = trained.evaluations[0], trained.evaluations[-1]
    assert [each.step for each in trained.evaluations] == [0, 50, 100]
    assert before.training_loss == pytest.approx(torch.tensor(65.0).log().item(), abs=0.1)
    assert after.training_loss < 1.3
    assert after.held_out_loss < 1.6


def test_training_writes_a_checkpoint_its_losses_and_their_curve(trained: Trained) -> None:
    names = {"config.json", "model.safetensors", "tokenizer.json", "losses.json", "loss.png"}
    assert {path.name for path in trained.folder.iterdir()} == names
    told = json.loads((trained.folder / "losses.json").read_text())["evaluations"][-1]["held_out_loss"]
    assert told == trained.evaluations[-1].held_out_loss


def test_training_refuses_a_text_with_too_little_to_hold_out(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`text` has 120 characters"):
        train_checkpoint("To be or not" * 10, tmp_path, RECIPE)


@pytest.mark.covers("experiments/nanogpt-size")
def test_a_model_of_65_characters_has_209729_parameters_in_the_engine(trained: Trained) -> None:
    info = LLM(str(trained.folder)).info
    assert (info.architecture, info.num_parameters, info.max_seq_len) == ("nanogpt", 209_729, 32)


def test_the_tokenizer_has_a_token_for_each_character_and_joins_them_without_spaces() -> None:
    tokenizer = character_tokenizer(CHARACTERS)
    assert tokenizer.encode("\n !").ids == [0, 1, 2]
    assert tokenizer.decode(tokenizer.encode("KING HENRY:\nO").ids) == "KING HENRY:\nO"


def test_rows_of_one_length_attend_as_they_do_one_by_one(trained: Trained) -> None:
    model = load_model(trained.folder, device=torch.device("cpu"), dtype=torch.float32)
    ids, positions = torch.arange(60), torch.arange(20).repeat(3)
    together, one_by_one = model(ids, positions, EqualRows(20)), model(ids, positions, CausalView([20] * 3))
    assert (together - one_by_one).abs().max() <= 1e-5


@pytest.mark.covers("experiments/nanogpt-simulation")
def test_the_simulation_admits_at_steps_0_0_3_and_completes_at_15_20_16(simulation: Simulation) -> None:
    assert [outcome.admitted_at for outcome in simulation.outcomes] == [0, 0, 3]
    assert [outcome.completed_at for outcome in simulation.outcomes] == [15, 20, 16]
    assert len(simulation.steps) == 21


@pytest.mark.covers("experiments/nanogpt-positions")
def test_each_simulated_request_has_a_cache_of_prompt_and_generated_less_one_positions(simulation: Simulation) -> None:
    assert [outcome.cache_positions for outcome in simulation.outcomes] == [25, 30, 26]
    for outcome, asked in zip(simulation.outcomes, ARRIVALS, strict=True):
        assert outcome.num_generated_tokens == len(outcome.text) == asked.num_tokens
        assert outcome.cache_positions == len(asked.prompt) + asked.num_tokens - 1


def test_every_cache_position_is_computed_once_and_in_order(simulation: Simulation) -> None:
    for outcome in simulation.outcomes:
        name = outcome.arrival.name
        shares = [share for step in simulation.steps for share in step.shares if share.name == name]
        computed = [position for share in shares for position in range(share.start, share.end)]
        assert computed == list(range(outcome.cache_positions))


def test_who_is_admitted_is_prefilled_and_then_decoded_in_the_same_step(simulation: Simulation) -> None:
    arrived = simulation.steps[3]
    prompts, decodes = arrived.passes
    assert [(share.name, share.start, share.end) for share in prompts] == [("C", 0, 12)]
    assert [(share.name, share.start, share.end) for share in decodes] == [("A", 12, 13), ("B", 12, 13), ("C", 12, 13)]
    assert all(len(step.passes) == 1 for step in simulation.steps if not step.admitted)


def test_the_printed_trace_has_a_line_for_each_step_and_request(simulation: Simulation) -> None:
    lines = trace(simulation)
    assert len(lines) == 1 + 21
    assert " ".join(lines[1].split()) == "0 A B A:9 B:9 A B - A:10 B:10"
    assert " ".join(lines[4].split()) == "3 C C:12 A B C - A:13 B:13 C:13"
    assert " ".join(lines[21].split()) == "20 - - B B B:30"
    assert "admitted at step 3, completed at step 16; 12 + 15 tokens, 26 positions" in summary(simulation)[2]


def test_the_trace_of_the_documentation_is_the_one_that_is_printed(simulation: Simulation) -> None:
    assert "\n".join(trace(simulation)) in PAGE.read_text(encoding="utf-8")


def test_simulated_requests_have_the_texts_that_they_have_alone(trained: Trained, simulation: Simulation) -> None:
    for outcome in simulation.outcomes:
        [alone] = simulate(trained.folder, [outcome.arrival]).outcomes
        assert alone.text == outcome.text


def test_requests_that_complete_in_one_step_have_their_own_cache_lengths(trained: Trained) -> None:
    arrivals = [
        Arrival(name=name, prompt=prompt, num_tokens=5, step=0) for name, prompt in (("A", "to"), ("B", "rain"))
    ]
    outcomes = simulate(trained.folder, arrivals).outcomes
    assert [(outcome.completed_at, outcome.cache_positions) for outcome in outcomes] == [(3, 6), (3, 8)]


def test_samples_go_on_beyond_the_context_and_repeat_for_a_seed(trained: Trained) -> None:
    llm = LLM(str(trained.folder))
    first, second = continue_text(llm, ["the rain ", "to "], length=50, temperature=0.8, seed=1)
    assert (first[:9], len(first), second[:3], len(second)) == ("the rain ", 59, "to ", 53)
    assert continue_text(llm, ["the rain ", "to "], length=50, temperature=0.8, seed=1) == [first, second]


def test_a_prompt_with_unknown_characters_is_refused(trained: Trained) -> None:
    check_characters(trained.folder, "KING HENRY:\n")
    with pytest.raises(ValueError, match=r"`--prompt` is '5 é'.*\['5', 'é'\]"):
        check_characters(trained.folder, "5 é")
