"""What a long context costs where most layers have a sliding window, and that giving blocks back changes no token."""

import mmap
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from infer_cache import max_blocks_in_window
from infer_proofs.engine.models import ModelEngine, random_prompt, save_servable

NUM_LAYERS = 26
LAYER_TYPES = ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(NUM_LAYERS)]
SHAPE: dict[str, Any] = {
    "num_hidden_layers": NUM_LAYERS,
    "layer_types": LAYER_TYPES,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
BYTES_PER_TOKEN = 2 * 16 * 4  # keys and values of a layer, fp32

pytestmark = pytest.mark.full  # a model of 26 layers


def save(folder: Path, *, window: int, max_len: int) -> Path:
    save_servable("gemma3", folder, **SHAPE, sliding_window=window, max_position_embeddings=max_len)
    return folder


def mapped_bytes(folder: Path, **config: Any) -> int:
    """Return the bytes of memory that an engine over `folder` maps: its KV cache."""
    sizes: list[int] = []

    def map_counted(fileno: int, length: int, *flags: int) -> mmap.mmap:
        sizes.append(length)
        return map_pages(fileno, length, *flags)

    map_pages = mmap.mmap
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mmap, "mmap", map_counted)
        engine = ModelEngine(folder, max_batch_size=1, **config)
    assert engine.core.stats.num_blocks > 0
    return sum(sizes)


@pytest.mark.covers("kv-cache/window-blocks")
def test_a_request_of_32k_tokens_takes_a_quarter_of_what_full_layers_take(tmp_path: Path) -> None:
    folder = save(tmp_path, window=512, max_len=32768)
    in_groups = mapped_bytes(folder, max_seq_len=32768)
    in_one_group = mapped_bytes(folder, max_seq_len=32768, kv_cache_backend="contiguous")
    assert in_one_group >= NUM_LAYERS * 32768 * BYTES_PER_TOKEN
    assert in_groups >= LAYER_TYPES.count("full_attention") * 32768 * BYTES_PER_TOKEN
    assert in_one_group >= 4 * in_groups


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 4,096 positions with a window of 64, the same proportions."""
    return save(tmp_path_factory.mktemp("windows"), window=64, max_len=4096)


def peak_blocks(engine: ModelEngine, prompts: list[list[int]]) -> tuple[dict[int | None, int], list[list[int]]]:
    """Run the prompts; return the most blocks held at a time by the layers of each window, and the tokens."""
    peaks: defaultdict[int | None, int] = defaultdict(int)
    tokens: list[list[int]] = [[] for _ in prompts]
    for number, prompt in enumerate(prompts):
        engine.submit(f"{number}", prompt, max_tokens=40)
    while engine.core.has_work:
        for output in engine.step().outputs:
            tokens[int(output.request_id)] += output.token_ids
        for group in engine.paged_manager.groups:
            held = group.block_pool.num_blocks - group.block_pool.num_free
            peaks[group.window] = max(peaks[group.window], held)
    return peaks, tokens


@pytest.mark.parametrize("caches", [True, False], ids=["caching", "not caching"])
def test_a_long_prompt_holds_what_its_windows_reach_and_gets_the_same_tokens(folder: Path, *, caches: bool) -> None:
    prompt = random_prompt(4000)
    sizes: dict[str, Any] = {"max_seq_len": 4096, "max_batch_size": 2, "prefill_chunk_size": 128}
    engine = ModelEngine(folder, block_size=16, use_prefix_caching=caches, **sizes)
    peaks, [tokens] = peak_blocks(engine, [prompt])
    reach = max_blocks_in_window(4040, window=64, max_chunk=128, block_size=16)
    assert peaks[None] == -(-4039 // 16)
    assert peaks[64] <= reach < peaks[None] / 15
    contiguous = ModelEngine(folder, kv_cache_backend="contiguous", **sizes)
    assert tokens == contiguous.complete(prompt, max_tokens=40)


def test_several_prompts_each_hold_what_their_windows_reach(folder: Path) -> None:
    prompts = [random_prompt(length) for length in (700, 65, 300)]
    engine = ModelEngine(folder, block_size=8, max_seq_len=1024, prefill_chunk_size=64, max_batch_size=6)
    peaks, tokens = peak_blocks(engine, prompts)
    assert peaks[64] <= len(prompts) * max_blocks_in_window(740, window=64, max_chunk=64, block_size=8)
    contiguous = ModelEngine(folder, kv_cache_backend="contiguous", max_seq_len=1024)
    assert tokens == [contiguous.complete(prompt, max_tokens=40) for prompt in prompts]


def test_an_answer_longer_than_the_window_gives_back_as_it_grows(folder: Path) -> None:
    engine = ModelEngine(folder, block_size=8, max_seq_len=512, prefill_chunk_size=64, max_batch_size=2)
    engine.submit("long answer", random_prompt(10), max_tokens=300)
    groups = {group.window: group for group in engine.paged_manager.groups}
    for _ in range(290):
        engine.step()
    assert len(groups[None]["long answer"].block_ids) == -(-299 // 8)
    assert len(groups[64]["long answer"].block_ids) <= 64 // 8 + 1
