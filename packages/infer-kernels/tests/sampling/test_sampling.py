"""What a row's filters keep and what is drawn from it, on the PyTorch path."""

import pytest
import torch

from infer_kernels.checks.inputs.draws import FIRST_SEED, LAST_SEED, Draws, assert_drawn, make_draws, random_draws
from infer_kernels.reference import kept_tokens_reference, sample_reference
from infer_kernels.sampling import sample

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def descending(vocab: int, *, step: float = 0.01) -> torch.Tensor:
    """Logits whose order is that of their ids, so that the last token kept is the highest id kept."""
    return -step * torch.arange(vocab)[None]


def last_kept(logits: torch.Tensor, draws: Draws) -> list[int]:
    """The highest id that is kept: what a number next to 1 draws."""
    return sample(logits, **draws.arguments | {"seeds": torch.full_like(draws.seeds, LAST_SEED)}).tolist()


@pytest.mark.parametrize("vocab", [1, 2, 17, 1031, 4097, 9000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sample_draws_what_the_definition_draws(vocab: int, dtype: torch.dtype) -> None:
    logits = (3 * torch.randn(45, vocab)).to(dtype)
    draws = random_draws(45, vocab=vocab)
    assert_drawn(sample(logits, **draws.arguments), logits, draws)


@pytest.mark.parametrize("vocab", [17, 1031, 9000])
def test_sample_of_many_equal_logits_cuts_them_at_the_lowest_ids(vocab: int) -> None:
    logits = torch.randint(-3, 4, (60, vocab)).float()
    draws = random_draws(60, vocab=vocab, seed=1)
    assert_drawn(sample(logits, **draws.arguments), logits, draws)


def test_reference_draws_by_the_definition_too() -> None:
    logits = torch.randn(40, 31)
    draws = random_draws(40, vocab=31)
    assert_drawn(sample_reference(logits, **draws.arguments), logits, draws)


def test_no_temperatures_take_the_lowest_id_of_the_largest_logits() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [0.0, 0.0, 4.0]])
    out = torch.empty(3, dtype=torch.int64)
    assert sample(logits).tolist() == [1, 0, 2]
    assert sample(logits, out=out) is out
    assert out.tolist() == [1, 0, 2]


@pytest.mark.parametrize("vocab", [1, 5, 64, 1031, 9000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_greedy_rows_take_the_first_of_equal_largest_wherever_it_is(vocab: int, dtype: torch.dtype) -> None:
    first = torch.tensor([0, vocab // 3, vocab // 2, vocab - 1])
    later = torch.arange(vocab) >= first[:, None]
    wide = torch.full((4, vocab + 3), 9.0, dtype=dtype)
    wide[:, :vocab] = torch.where(later & (torch.rand(4, vocab) < 0.1), 5.0, torch.randn(4, vocab))
    wide[torch.arange(4), first] = 5.0
    assert torch.equal(sample(wide[:, :vocab]), first)  # rows of a wider matrix
    assert torch.equal(sample(wide[:, :vocab].contiguous()), first)
    assert torch.equal(sample_reference(wide[:, :vocab]), first)


@pytest.mark.parametrize("dtype", DTYPES)
def test_greedy_rows_take_the_first_nan_before_anything(dtype: torch.dtype) -> None:
    logits = torch.randn(3, 700).to(dtype)
    logits[:, 20] = torch.inf
    logits[0, [0, 9]] = torch.nan
    logits[1, [340, 341, 699]] = torch.nan
    assert sample(logits).tolist() == [0, 340, 20]


@pytest.mark.covers("requests/temperature")
def test_temperature_zero_and_less_is_greedy_beside_rows_that_draw() -> None:
    logits = torch.randn(6, 50)
    draws = make_draws(temperatures=[0.0, 1.0, -1.0, 5.0, 0.0, 2.0], top_k=[5] * 6)
    drawn = sample(logits, **draws.arguments)
    assert_drawn(drawn, logits, draws)
    assert torch.equal(drawn[[0, 2, 4]], logits[[0, 2, 4]].argmax(-1))


@pytest.mark.covers("requests/top-p-top-k-min-p")
@pytest.mark.parametrize("top_k", [1, 2, 50, 999, 1000])
def test_top_k_keeps_exactly_k_tokens(top_k: int) -> None:
    assert last_kept(descending(1000), make_draws(temperatures=[3.0], top_k=[top_k])) == [top_k - 1]


@pytest.mark.covers("http/limit-top-k")
@pytest.mark.parametrize("top_k", [-1, 0, 1001, 2**31 - 1])
def test_top_k_out_of_range_is_no_limit(top_k: int) -> None:
    assert last_kept(descending(1000), make_draws(temperatures=[3.0], top_k=[top_k])) == [999]


@pytest.mark.parametrize("top_k", [1, 3, 6, 7])
def test_top_k_cuts_equal_logits_at_the_lowest_ids(top_k: int) -> None:
    logits = torch.tensor([[2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]])
    assert last_kept(logits, make_draws(temperatures=[1.0], top_k=[top_k])) == [top_k - 1]


@pytest.mark.covers("requests/top-p-top-k-min-p")
@pytest.mark.parametrize(("top_p", "num_kept"), [(0.0, 1), (0.4, 1), (0.401, 2), (0.69, 2), (0.75, 3), (0.9999, 4)])
def test_top_p_keeps_the_shortest_start_that_reaches_it(top_p: float, num_kept: int) -> None:
    logits = torch.tensor([[0.4001, 0.2999, 0.2, 0.1]]).log()
    assert last_kept(logits, make_draws(temperatures=[1.0], top_p=[top_p])) == [num_kept - 1]


def test_top_p_of_equal_logits_keeps_as_many_as_its_share() -> None:
    draws = make_draws(temperatures=[1.0] * 3, top_p=[0.26, 0.5, 0.76])
    assert last_kept(torch.zeros(3, 100), draws) == [25, 49, 75]


@pytest.mark.covers("requests/top-p-top-k-min-p")
@pytest.mark.parametrize(("min_p", "num_kept"), [(0.0, 4), (0.24, 4), (0.26, 3), (0.6, 2), (1.0, 1), (7.0, 1)])
def test_min_p_keeps_tokens_by_their_ratio_to_the_most_probable(min_p: float, num_kept: int) -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    assert last_kept(logits, make_draws(temperatures=[1.0], min_p=[min_p])) == [num_kept - 1]


def test_min_p_drops_before_top_k_and_top_p_take_their_share() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    draws = make_draws(temperatures=[1.0], min_p=[0.3], top_p=[0.75])
    # min-p drops 0.1; of what is left 0.4 and 0.3 have 78%. The other order would need 0.2 for the 75%.
    assert last_kept(logits, draws) == [1]
    draws = make_draws(temperatures=[1.0], top_k=[2], top_p=[0.6])
    assert last_kept(logits, draws) == [1]
    draws = make_draws(temperatures=[1.0], top_k=[2], top_p=[0.57])
    assert last_kept(logits, draws) == [0]


@pytest.mark.parametrize("vocab", [3000, 40_000])
@pytest.mark.parametrize("top_p", [0.3, 0.9])
def test_top_p_reaches_beyond_the_first_values_that_are_looked_at(vocab: int, top_p: float) -> None:
    drawn = last_kept(torch.zeros(2, vocab), make_draws(temperatures=[1.0] * 2, top_p=[top_p] * 2))
    assert drawn == [round(top_p * vocab) - 1] * 2 or drawn == [round(top_p * vocab)] * 2


def test_the_draw_inverts_the_distribution_in_order_of_ids() -> None:
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log().expand(2, -1)
    draws = make_draws(temperatures=[1.0] * 2, seeds=[FIRST_SEED, LAST_SEED])
    assert sample(logits, **draws.arguments).tolist() == [0, 3]


def test_draws_follow_the_distribution() -> None:
    num_draws = 20_000
    one = 2 * torch.randn(50)
    draws = make_draws(temperatures=[1.7] * num_draws, positions=list(range(num_draws)))
    drawn = sample(one.expand(num_draws, -1), **draws.arguments)
    expected = (one / 1.7).softmax(-1)
    observed = drawn.bincount(minlength=50) / num_draws
    # Five standard deviations of each token's share, and what a dropped tail token would have had.
    assert torch.all((observed - expected).abs() <= 5 * (expected / num_draws).sqrt() + 1e-3)


@pytest.mark.parametrize("vocab", [50, 3001])
def test_a_rows_choice_is_the_same_in_any_company(vocab: int) -> None:
    logits, draws = 2 * torch.randn(27, vocab), random_draws(27, vocab=vocab)
    together = sample(logits, **draws.arguments)
    order = torch.randperm(27)
    assert torch.equal(sample(logits[order], **draws.rows(order).arguments), together[order])
    alone = [sample(logits[i : i + 1], **draws.rows(slice(i, i + 1)).arguments) for i in range(27)]
    assert torch.equal(torch.cat(alone), together)


def test_infinities_and_nan_give_ids_inside_the_vocabulary() -> None:
    inf, nan = torch.inf, torch.nan
    logits = torch.tensor([[-inf, 0, -inf, 1], [-inf] * 4, [0, inf, inf, 1], [0, nan, 2, 1], [nan] * 4])
    for top_k, top_p, min_p in ((0, 1.0, 0.0), (3, 1.0, 0.0), (0, 0.99, 0.0), (3, 0.99, 1e-9)):
        draws = make_draws(temperatures=[1.0] * 5, top_k=[top_k] * 5, top_p=[top_p] * 5, min_p=[min_p] * 5)
        drawn = sample(logits, **draws.arguments)
        assert_drawn(drawn[:3], logits[:3], draws)
        assert drawn[1:3].tolist() == [0, 1]
        assert ((drawn >= 0) & (drawn < 4)).all()


@pytest.mark.parametrize("temperature", [1e-40, 1e-9, 2e-5])
def test_a_tiny_temperature_does_not_overflow(temperature: float) -> None:
    logits = 1000 * torch.randn(3, 40)
    draws = make_draws(temperatures=[temperature] * 3, top_k=[0, 7, 0], top_p=[1.0, 1.0, 0.9])
    assert torch.equal(sample(logits, **draws.arguments), logits.argmax(-1))


def test_views_of_wider_rows_and_filters_left_out_change_nothing() -> None:
    wide, draws = torch.randn(6, 100), make_draws(temperatures=[1.0] * 6, top_k=[5] * 6)
    logits, out = wide[:, 7:70], torch.empty(6, dtype=torch.int64)
    expected = sample(logits.contiguous(), **draws.arguments)
    filters = {"top_p": None, "min_p": None, "positions": draws.positions.long()}
    assert sample(logits, **draws.arguments | filters, out=out) is out
    assert torch.equal(out, expected)


def test_sample_of_no_rows_is_empty() -> None:
    draws = random_draws(0, vocab=5)
    assert sample(torch.empty(0, 5), **draws.arguments).shape == (0,)
    assert sample(torch.empty(0, 5)).shape == (0,)
    assert sample_reference(torch.empty(0, 5)).shape == (0,)


def test_reference_keeps_tokens_in_their_order() -> None:
    logits = torch.tensor([1.0, 3.0, 2.0, 3.0, -torch.inf])
    assert kept_tokens_reference(logits, temperature=1.0).tolist() == [1, 3, 2, 0]
    assert kept_tokens_reference(logits, temperature=1.0, top_k=3).tolist() == [1, 3, 2]
    assert kept_tokens_reference(logits, temperature=0.0).tolist() == [1]
