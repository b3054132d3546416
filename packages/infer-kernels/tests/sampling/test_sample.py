"""What a row's filters keep and what is drawn from it, in Triton and in PyTorch, against the definition."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from infer_kernels.checks.inputs.draws import FIRST_SEED, LAST_SEED, Draws, assert_drawn, make_draws, random_draws
from infer_kernels.reference import kept_tokens_reference, sample_reference
from infer_kernels.sampling import row_chunks, sample, sample_triton
from infer_kernels.sampling.uniform import uniform
from infer_proofs.kernels.inputs.draw_strategies import batches
from infer_proofs.kernels.pairwise import parametrize_each_value
from infer_proofs.kernels.paths import DTYPES, INTERPRETED

pytestmark = pytest.mark.usefixtures("triton_or_pytorch")

EXAMPLES = settings().max_examples // (5 if INTERPRETED else 1)
MAX_ROWS = 2 if INTERPRETED else 4


def last_kept(logits: Tensor, draws: Draws) -> list[int]:
    """Return the highest id that is kept: what a number next to 1 draws."""
    return sample(logits, **draws.arguments | {"seeds": torch.full_like(draws.seeds, LAST_SEED)}).tolist()


@parametrize_each_value(vocab=[1, 2, 17, 1031, 2049, 4097, 9000], dtype=DTYPES)
def test_sample_draws_what_the_definition_draws(vocab: int, dtype: torch.dtype) -> None:
    rows = 9 if INTERPRETED else 45
    logits, draws = (3 * torch.randn(rows, vocab)).to(dtype), random_draws(rows, vocab=vocab)
    assert_drawn(sample(logits, **draws.arguments), logits, draws)


@pytest.mark.parametrize("vocab", [17, 2049, pytest.param(9000, marks=pytest.mark.full)])
def test_sample_of_many_equal_logits_cuts_them_at_the_lowest_ids(vocab: int) -> None:
    rows = 9 if INTERPRETED else 45
    logits, draws = torch.randint(-3, 4, (rows, vocab)).float(), random_draws(rows, vocab=vocab, seed=1)
    assert_drawn(sample(logits, **draws.arguments), logits, draws)


@pytest.mark.covers("requests/temperature")
@settings(max_examples=EXAMPLES)
@given(batch=batches(max_rows=MAX_ROWS))
def test_sample_draws_what_the_definition_draws_of_anything(batch: tuple[Tensor, Draws]) -> None:
    logits, draws = batch
    assert_drawn(sample(logits, **draws.arguments), logits, draws)


@pytest.mark.covers("requests/seed-in-any-batch")
@pytest.mark.usefixtures("cpu_only")
@given(batch=batches())
def test_a_row_alone_draws_as_in_company(batch: tuple[Tensor, Draws]) -> None:
    logits, draws = batch
    together = sample(logits, **draws.arguments)
    alone = [sample(logits[i : i + 1], **draws.rows(slice(i, i + 1)).arguments) for i in range(len(logits))]
    assert torch.equal(torch.cat(alone), together)


# 5 chunks of one tile; 35 of two
@pytest.mark.parametrize(
    ("rows", "vocab"), [(9, 50), (9, 3001), (8, 9000), pytest.param(2, 140_000, marks=pytest.mark.full)]
)
def test_a_rows_choice_is_the_same_in_any_company(rows: int, vocab: int) -> None:
    logits, draws = (2 * torch.randn(rows, vocab)).bfloat16(), random_draws(rows, vocab=vocab)
    together = sample(logits, **draws.arguments)
    assert_drawn(together, logits, draws)
    alone = [sample(logits[i : i + 1], **draws.rows(slice(i, i + 1)).arguments) for i in range(rows)]
    assert torch.equal(torch.cat(alone), together)
    order = torch.randperm(rows)
    assert torch.equal(sample(logits[order], **draws.rows(order).arguments), together[order])


@pytest.mark.covers("requests/top-p-top-k-min-p")
@pytest.mark.parametrize("dtype", DTYPES)
def test_top_k_keeps_exactly_k_tokens(dtype: torch.dtype) -> None:
    # Steps of 1/64 below 8 are exact in fp16; in bf16 most logits have equals.
    logits = (-torch.arange(500) / 64)[None].to(dtype).expand(6, -1)
    top_k = [1, 2, 50, 333, 499, 500]
    assert last_kept(logits, make_draws(temperatures=[5.0] * 6, top_k=top_k)) == [k - 1 for k in top_k]


@pytest.mark.covers("http/limit-top-k")
def test_top_k_out_of_range_is_no_limit() -> None:
    top_k = [-1, 0, 1001, 2**31 - 1]
    logits = (-torch.arange(1000) / 100)[None].expand(4, -1)
    assert last_kept(logits, make_draws(temperatures=[3.0] * 4, top_k=top_k)) == [999] * 4


def test_top_k_keeps_exactly_k_tokens_of_any_magnitude() -> None:
    # Halving a range of values finds these one or two at a time, halving their bits at once.
    magnitudes = 2.0 ** torch.arange(100, -101, -1)
    logits = torch.cat((magnitudes, -magnitudes.flip(0))).expand(5, -1)
    top_k = [3, 120, 201, 202, 390]
    assert last_kept(logits, make_draws(temperatures=[2.0**110] * 5, top_k=top_k)) == [k - 1 for k in top_k]


def test_equal_logits_are_cut_at_the_lowest_ids_within_and_across_tiles() -> None:
    few = torch.tensor([2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]).expand(4, -1)
    assert last_kept(few, make_draws(temperatures=[1.0] * 4, top_k=[1, 3, 6, 7])) == [0, 2, 5, 6]
    logits = torch.zeros(8, 5000)
    logits[:, -1] = 5.0
    draws = make_draws(temperatures=[1.0] * 8, top_k=[1, 2, 101, 2048, 2049, 2050, 3001, 5000])
    # Of the equals the lowest ids are kept, whatever tile they are in: the last token kept is the largest of all.
    assert last_kept(logits, draws) == [4999] * 8
    assert_drawn(sample(logits, **draws.arguments), logits, draws)


@pytest.mark.covers("requests/top-p-top-k-min-p")
def test_top_p_keeps_the_shortest_start_that_reaches_it() -> None:
    logits = torch.tensor([0.4001, 0.2999, 0.2, 0.1]).log().expand(6, -1)
    draws = make_draws(temperatures=[1.0] * 6, top_p=[0.0, 0.4, 0.401, 0.69, 0.75, 0.9999])
    assert last_kept(logits, draws) == [0, 0, 1, 1, 2, 3]


def test_top_p_of_equal_logits_keeps_as_many_as_its_share() -> None:
    draws = make_draws(temperatures=[1.0] * 4, top_p=[0.0, 0.26, 0.5, 0.76])
    assert last_kept(torch.zeros(4, 100), draws) == [0, 25, 49, 75]


@pytest.mark.covers("requests/top-p-top-k-min-p")
def test_min_p_keeps_tokens_by_their_ratio_to_the_most_probable() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().expand(6, -1)
    draws = make_draws(temperatures=[1.0] * 6, min_p=[0.0, 0.24, 0.26, 0.6, 1.0, 7.0])
    assert last_kept(logits, draws) == [3, 3, 2, 1, 0, 0]


def test_filters_take_their_share_of_what_the_one_before_leaves() -> None:
    # min-p drops 0.1; of what is left 0.4 and 0.3 have 78%. The other order would need 0.2 for the 75%.
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().expand(5, -1)
    draws = make_draws(
        temperatures=[1.0] * 5,
        top_k=[0, 2, 2, 0, 3],
        top_p=[0.75, 0.6, 0.57, 0.75, 1.0],
        min_p=[0.3, 0.0, 0.0, 0.0, 0.6],
    )
    assert last_kept(logits, draws) == [1, 1, 0, 2, 1]


def test_top_p_within_a_top_k_that_cuts_equal_logits() -> None:
    logits = torch.tensor([1.0] + [0.0] * 9).expand(3, -1)
    draws = make_draws(temperatures=[1.0] * 3, top_k=[5] * 3, top_p=[0.3, 0.6, 0.99])
    assert last_kept(logits, draws) == [0, 2, 4]  # of masses e, 1, 1, 1, 1


@pytest.mark.usefixtures("cpu_only")
@pytest.mark.parametrize("vocab", [3000, 40_000])
@pytest.mark.parametrize("top_p", [0.3, 0.9])
def test_top_p_reaches_beyond_the_first_values_that_are_looked_at(vocab: int, top_p: float) -> None:
    drawn = last_kept(torch.zeros(2, vocab), make_draws(temperatures=[1.0] * 2, top_p=[top_p] * 2))
    assert drawn == [round(top_p * vocab) - 1] * 2 or drawn == [round(top_p * vocab)] * 2


@pytest.mark.usefixtures("triton_only")
@pytest.mark.parametrize("filters", [{"top_k": [5_000]}, {"top_p": [0.9]}])
def test_more_candidates_than_the_lists_hold_are_cut_all_the_same(
    filters: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_triton, "DEPTH", 2)
    logits = (0.3 * torch.randn(1, 3 * row_chunks.BLOCK)).bfloat16()
    draws = make_draws(temperatures=[1.0], **filters)
    assert_drawn(sample(logits, **draws.arguments), logits, draws)


@pytest.mark.covers("requests/temperature")
def test_temperature_zero_and_less_is_greedy_beside_rows_that_draw() -> None:
    logits = torch.randint(0, 4, (4, 3000)).float()
    draws = make_draws(temperatures=[0.0, 1.0, -1.0, 2.0], top_k=[5] * 4)
    drawn = sample(logits, **draws.arguments)
    assert_drawn(drawn, logits, draws)
    assert torch.equal(drawn[[0, 2]], logits[[0, 2]].argmax(-1))


@pytest.mark.usefixtures("triton_only")
def test_a_program_that_takes_several_chunks_finds_in_each_what_it_finds_alone() -> None:
    rows, chunks = 8, 10  # for eight programs of each row; of one row each chunk has a program
    logits = 3 * torch.randn(rows, 2048 * chunks - 3)
    draws = random_draws(rows, vocab=logits.shape[1], seed=2)
    together = found_in_chunks(logits, draws, chunks=chunks)
    for row in range(rows):
        here = slice(row, row + 1)
        for found, alone in zip(together, found_in_chunks(logits[here], draws.rows(here), chunks=chunks), strict=True):
            assert torch.equal(found[here], alone)
    assert together[1][:, chunks - 1].any()  # the last chunk has candidates


def found_in_chunks(logits: Tensor, draws: Draws, *, chunks: int) -> list[Tensor]:
    """Return masses, counts and lists of all chunks of one tile each."""
    rows = len(logits)
    maxima = torch.empty(rows, chunks * 64)
    masses, counts = torch.zeros(rows, row_chunks.CHUNKS), torch.zeros(rows, row_chunks.CHUNKS, dtype=torch.int32)
    lists = torch.zeros(rows, sample_triton.DEPTH, row_chunks.BLOCK, dtype=logits.dtype)
    row_chunks.launch_maxima(logits, maxima=maxima, chunks=chunks, tiles_per_chunk=1, groups_per_tile=64)
    filters = {name: getattr(draws, name) for name in ("temperatures", "top_k", "top_p", "min_p")}
    row_chunks.launch_candidates(
        logits, **filters, maxima=maxima, masses=masses, counts=counts, lists=lists, chunks=chunks, tiles_per_chunk=1
    )
    return [masses, counts, lists]


@pytest.mark.usefixtures("triton_only")
def test_candidates_of_all_tiles_of_a_chunk_count() -> None:
    # 300 tokens above the rest, in order of ids, in both tiles of every chunk.
    logits, high = torch.full((1, 140_000), -1.0), torch.arange(300)
    logits[0, high * 466] = 5.0 - high / 1000
    top_k = [1, 150, 299]
    draws = make_draws(temperatures=[9.0] * 3, top_k=top_k)
    assert last_kept(logits.expand(3, -1), draws) == [(k - 1) * 466 for k in top_k]


def test_the_chunk_of_a_draw_is_found_in_order_of_ids() -> None:
    # One possible token in each chunk, of equal mass: the draw is the chunk.
    logits = torch.full((12, 5 * row_chunks.BLOCK), -torch.inf)
    logits[:, 7 :: row_chunks.BLOCK] = 1.0
    draws = make_draws(temperatures=[1.0] * 12, positions=list(range(12)), top_k=[0, 4, 0, 5] * 3)
    drawn = sample(logits, **draws.arguments)
    assert_drawn(drawn, logits, draws)
    numbers = uniform(draws.seeds, draws.positions) * torch.tensor([5, 4, 5, 5] * 3)
    assert torch.equal(drawn, numbers.long() * row_chunks.BLOCK + 7)


def test_the_draw_inverts_the_distribution_in_order_of_ids() -> None:
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log().repeat(2, 1100)
    draws = make_draws(temperatures=[1.0] * 2, seeds=[FIRST_SEED, LAST_SEED])
    assert sample(logits, **draws.arguments).tolist() == [0, 4399]


def test_the_number_of_a_draw_is_that_of_its_seed_and_position() -> None:
    draws = random_draws(30, vocab=1)
    draws = make_draws(temperatures=[1.0] * 30, seeds=draws.seeds.tolist(), positions=draws.positions.tolist())
    # Of equal logits the draw is the number itself, to a part in the vocabulary.
    drawn = sample(torch.zeros(30, 2000), **draws.arguments)
    assert ((drawn - 2000 * uniform(draws.seeds, draws.positions)).abs() < 1.001).all()


@pytest.mark.usefixtures("cpu_only")
def test_draws_follow_the_distribution() -> None:
    num_draws = 20_000
    one = 2 * torch.randn(50)
    draws = make_draws(temperatures=[1.7] * num_draws, positions=list(range(num_draws)))
    drawn = sample(one.expand(num_draws, -1), **draws.arguments)
    expected = (one / 1.7).softmax(-1)
    observed = drawn.bincount(minlength=50) / num_draws
    # Five standard deviations of each token's share, and what a dropped tail token would have had.
    assert torch.all((observed - expected).abs() <= 5 * (expected / num_draws).sqrt() + 1e-3)


def test_infinities_and_nan_give_ids_inside_the_vocabulary() -> None:
    inf, nan = torch.inf, torch.nan
    logits = torch.tensor([[-inf, 0, -inf, 1], [-inf] * 4, [0, inf, inf, 1], [0, nan, 2, 1], [nan] * 4])
    exact = 5 if INTERPRETED else 3  # rows with a NaN get some id
    for top_k, top_p, min_p in ((0, 1.0, 0.0), (3, 1.0, 0.0), (0, 0.99, 0.0), (3, 0.99, 1e-9)):
        draws = make_draws(temperatures=[1.0] * 5, top_k=[top_k] * 5, top_p=[top_p] * 5, min_p=[min_p] * 5)
        drawn = sample(logits, **draws.arguments)
        assert_drawn(drawn[:exact], logits[:exact], draws)
        assert drawn[1:3].tolist() == [0, 1]
        assert ((drawn >= 0) & (drawn < 4)).all()


@pytest.mark.parametrize("temperature", [1e-40, 1e-30, 1e-9, 2e-5])
def test_a_tiny_temperature_does_not_overflow(temperature: float) -> None:
    logits = 1000 * torch.randn(3, 40)
    draws = make_draws(temperatures=[temperature] * 3, top_k=[0, 7, 0], top_p=[1.0, 1.0, 0.9])
    assert torch.equal(sample(logits, **draws.arguments), logits.argmax(-1))


@pytest.mark.parametrize("left_out", [["top_k"], ["top_p"], ["min_p"], ["top_k", "top_p"], ["top_k", "top_p", "min_p"]])
def test_filters_left_out_limit_nothing(left_out: list[str]) -> None:
    logits = torch.randn(4, 70)
    neutral = make_draws(temperatures=[1.0] * 4).arguments
    given = make_draws(temperatures=[0.5, 1.0, 1.5, 2.0], top_k=[9] * 4, top_p=[0.8] * 4, min_p=[0.05] * 4).arguments
    expected = sample(logits, **given | {name: neutral[name] for name in left_out})
    assert torch.equal(sample(logits, **given | dict.fromkeys(left_out)), expected)


def test_views_and_out_are_taken() -> None:
    wide, draws = torch.randn(3, 100), random_draws(3, vocab=60)
    logits, out = wide[:, 7:67], torch.full((5,), -7)
    arguments = draws.arguments | {"positions": draws.positions.long()}
    view = out[1:4]
    assert sample(logits, **arguments, out=view) is view
    assert torch.equal(view, sample(logits.contiguous(), **draws.arguments))
    assert out[[0, 4]].tolist() == [-7, -7]


def test_sample_of_no_rows_is_empty() -> None:
    assert sample(torch.empty(0, 5), **random_draws(0, vocab=5).arguments).shape == (0,)
    assert sample(torch.empty(0, 5)).shape == sample_reference(torch.empty(0, 5)).shape == (0,)


@pytest.mark.usefixtures("cpu_only")
def test_the_reference_draws_by_the_definition_and_keeps_tokens_in_their_order() -> None:
    logits, draws = torch.randn(40, 31), random_draws(40, vocab=31)
    assert_drawn(sample_reference(logits, **draws.arguments), logits, draws)
    row = torch.tensor([1.0, 3.0, 2.0, 3.0, -torch.inf])
    assert kept_tokens_reference(row, temperature=1.0).tolist() == [1, 3, 2, 0]
    assert kept_tokens_reference(row, temperature=1.0, top_k=3).tolist() == [1, 3, 2]
    assert kept_tokens_reference(row, temperature=0.0).tolist() == [1]
