"""The sampling kernel, interpreted, against the definition."""

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from infer_kernels.checks.inputs.draws import FIRST_SEED, LAST_SEED, Draws, assert_drawn, make_draws, random_draws
from infer_kernels.sampling import row_chunks, sample, sample_triton
from infer_kernels.sampling.uniform import uniform
from infer_proofs.kernels.inputs.draw_strategies import batches
from infer_proofs.kernels.pairwise import parametrize_each_value

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def last_kept(logits: Tensor, draws: Draws) -> list[int]:
    """The highest id that is kept: what a number next to 1 draws."""
    return sample(logits, **draws.arguments | {"seeds": torch.full_like(draws.seeds, LAST_SEED)}).tolist()


@parametrize_each_value(vocab=[1, 2, 17, 1031, 2049, 4097], dtype=DTYPES)
def test_sample_draws_what_the_definition_draws(vocab: int, dtype: torch.dtype) -> None:
    logits = (3 * torch.randn(9, vocab)).to(dtype)
    draws = random_draws(9, vocab=vocab)
    assert_drawn(sample(logits, **draws.arguments), logits, draws)


def found_in_chunks(logits: Tensor, draws: Draws, *, chunks: int) -> list[Tensor]:
    """Masses, counts and lists of all chunks of one tile each."""
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


@pytest.mark.parametrize("vocab", [17, 2049, pytest.param(4097, marks=pytest.mark.full)])
def test_sample_of_many_equal_logits_cuts_them_at_the_lowest_ids(vocab: int) -> None:
    logits = torch.randint(-3, 4, (9, vocab)).float()
    draws = random_draws(9, vocab=vocab, seed=1)
    assert_drawn(sample(logits, **draws.arguments), logits, draws)


@pytest.mark.covers("requests/temperature")
@settings(max_examples=settings().max_examples // 5)
@given(batch=batches(max_rows=2))
def test_sample_draws_what_the_definition_draws_of_anything(batch: tuple[Tensor, Draws]) -> None:
    logits, draws = batch
    assert_drawn(sample(logits, **draws.arguments), logits, draws)


@pytest.mark.parametrize("dtype", DTYPES)
def test_top_k_keeps_exactly_k_tokens(dtype: torch.dtype) -> None:
    # Steps of 1/64 below 8 are exact in fp16; in bf16 most logits have equals.
    logits = (-torch.arange(500) / 64)[None].to(dtype).expand(6, -1)
    top_k = [1, 2, 50, 333, 499, 500]
    assert last_kept(logits, make_draws(temperatures=[5.0] * 6, top_k=top_k)) == [k - 1 for k in top_k]


def test_top_k_keeps_exactly_k_tokens_of_any_magnitude() -> None:
    # Halving a range of values finds these one or two at a time, halving their bits at once.
    magnitudes = 2.0 ** torch.arange(100, -101, -1)
    logits = torch.cat((magnitudes, -magnitudes.flip(0))).expand(5, -1)
    top_k = [3, 120, 201, 202, 390]
    assert last_kept(logits, make_draws(temperatures=[2.0**110] * 5, top_k=top_k)) == [k - 1 for k in top_k]


def test_equal_logits_are_cut_across_tiles() -> None:
    logits = torch.zeros(8, 5000)
    logits[:, -1] = 5.0
    top_k = [1, 2, 101, 2048, 2049, 2050, 3001, 5000]
    draws = make_draws(temperatures=[1.0] * 8, top_k=top_k)
    # Of the equals the lowest ids are kept, whatever tile they are in: the last token kept is the largest of all.
    assert last_kept(logits, draws) == [4999] * 8
    assert_drawn(sample(logits, **draws.arguments), logits, draws)


def test_filters_take_their_share_of_what_the_one_before_leaves() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().expand(5, -1)
    draws = make_draws(
        temperatures=[1.0] * 5,
        top_k=[0, 2, 2, 0, 3],
        top_p=[0.75, 0.6, 0.57, 0.75, 1.0],
        min_p=[0.3, 0.0, 0.0, 0.0, 0.6],
    )
    assert last_kept(logits, draws) == [1, 1, 0, 2, 1]


def test_top_p_of_equal_logits_keeps_as_many_as_its_share() -> None:
    draws = make_draws(temperatures=[1.0] * 4, top_p=[0.0, 0.26, 0.5, 0.76])
    assert last_kept(torch.zeros(4, 100), draws) == [0, 25, 49, 75]


def test_top_p_within_a_top_k_that_cuts_equal_logits() -> None:
    logits = torch.tensor([1.0] + [0.0] * 9).expand(3, -1)
    draws = make_draws(temperatures=[1.0] * 3, top_k=[5] * 3, top_p=[0.3, 0.6, 0.99])
    assert last_kept(logits, draws) == [0, 2, 4]  # of masses e, 1, 1, 1, 1


@pytest.mark.parametrize("filters", [{"top_k": [5_000]}, {"top_p": [0.9]}])
def test_more_candidates_than_the_lists_hold_are_cut_all_the_same(
    filters: dict[str, list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_triton, "DEPTH", 2)
    logits = (0.3 * torch.randn(1, 3 * row_chunks.BLOCK)).bfloat16()
    draws = make_draws(temperatures=[1.0], **filters)  # type: ignore[arg-type]  # one of two lists
    assert_drawn(sample(logits, **draws.arguments), logits, draws)


def test_temperature_zero_is_greedy_beside_rows_that_draw() -> None:
    logits = torch.randint(0, 4, (4, 3000)).float()
    draws = make_draws(temperatures=[0.0, 1.0, -1.0, 2.0], top_k=[5] * 4)
    drawn = sample(logits, **draws.arguments)
    assert_drawn(drawn, logits, draws)
    assert torch.equal(drawn[[0, 2]], logits[[0, 2]].argmax(-1))


def test_a_rows_choice_is_the_same_in_any_company() -> None:
    logits, draws = 2 * torch.randn(9, 2050), random_draws(9, vocab=2050)
    together = sample(logits, **draws.arguments)
    order = torch.randperm(9)
    assert torch.equal(sample(logits[order], **draws.rows(order).arguments), together[order])
    alone = [sample(logits[i : i + 1], **draws.rows(slice(i, i + 1)).arguments) for i in range(9)]
    assert torch.equal(torch.cat(alone), together)


# 5 chunks of one tile; 35 of two
@pytest.mark.parametrize(("rows", "vocab"), [(8, 9000), pytest.param(2, 140_000, marks=pytest.mark.full)])
def test_a_row_of_many_chunks_draws_the_same_in_any_company(rows: int, vocab: int) -> None:
    logits, draws = (2 * torch.randn(rows, vocab)).bfloat16(), random_draws(rows, vocab=vocab)
    together = sample(logits, **draws.arguments)
    assert_drawn(together, logits, draws)
    alone = [sample(logits[i : i + 1], **draws.rows(slice(i, i + 1)).arguments) for i in range(rows)]
    assert torch.equal(torch.cat(alone), together)
    order = torch.randperm(rows)
    assert torch.equal(sample(logits[order], **draws.rows(order).arguments), together[order])


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


def test_the_kernel_hashes_as_pytorch_does() -> None:
    draws = random_draws(30, vocab=1)
    draws = make_draws(temperatures=[1.0] * 30, seeds=draws.seeds.tolist(), positions=draws.positions.tolist())
    # Of equal logits the draw is the number itself, to a part in the vocabulary.
    drawn = sample(torch.zeros(30, 2000), **draws.arguments)
    assert ((drawn - 2000 * uniform(draws.seeds, draws.positions)).abs() < 1.001).all()


def test_infinities_and_nan_give_ids_inside_the_vocabulary() -> None:
    inf, nan = torch.inf, torch.nan
    logits = torch.tensor([[-inf, 0, -inf, 1], [-inf] * 4, [0, inf, inf, 1], [0, nan, 2, 1], [nan] * 4])
    for top_k, top_p, min_p in ((0, 1.0, 0.0), (3, 0.99, 1e-9)):
        draws = make_draws(temperatures=[1.0] * 5, top_k=[top_k] * 5, top_p=[top_p] * 5, min_p=[min_p] * 5)
        drawn = sample(logits, **draws.arguments)
        assert_drawn(drawn, logits, draws)
        assert drawn[[1, 2, 4]].tolist() == [0, 1, 0]


@pytest.mark.parametrize("temperature", [1e-30, 2e-5])
def test_a_tiny_temperature_does_not_overflow(temperature: float) -> None:
    logits = 1000 * torch.randn(3, 40)
    draws = make_draws(temperatures=[temperature] * 3, top_k=[0, 7, 0], top_p=[1.0, 1.0, 0.9])
    assert torch.equal(sample(logits, **draws.arguments), logits.argmax(-1))


@pytest.mark.parametrize("left_out", [["top_k"], ["top_p"], ["min_p"], ["top_k", "top_p"], ["top_k", "top_p", "min_p"]])
def test_filters_left_out_limit_nothing(left_out: list[str]) -> None:
    logits = torch.randn(4, 70)
    neutral = make_draws(temperatures=[1.0] * 4).arguments
    draws = Draws(
        **make_draws(temperatures=[0.5, 1.0, 1.5, 2.0], top_k=[9] * 4, top_p=[0.8] * 4, min_p=[0.05] * 4).arguments
    )
    draws = Draws(**draws.arguments | {name: neutral[name] for name in left_out})
    given_none = sample(logits, **draws.arguments | dict.fromkeys(left_out))
    assert torch.equal(given_none, sample(logits, **draws.arguments))


def test_views_and_out_are_taken() -> None:
    wide, draws = torch.randn(3, 100), random_draws(3, vocab=60)
    logits, out = wide[:, 7:67], torch.full((5,), -7)
    arguments = draws.arguments | {"positions": draws.positions.long()}
    sample(logits, **arguments, out=out[1:4])
    assert torch.equal(out[1:4], sample(logits.contiguous(), **draws.arguments))
    assert out[[0, 4]].tolist() == [-7, -7]


def test_sample_of_no_rows_launches_nothing() -> None:
    assert sample(torch.empty(0, 5), **random_draws(0, vocab=5).arguments).shape == (0,)
