"""Several ranks answer as one; a rank that ends ends the engine."""

import gc
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from infer_engine import LLM
from infer_engine.assembly import runner as loading
from infer_engine.assembly.core import build_core
from infer_engine.executor.executor import Workers
from infer_engine.executor.messages import ComputeLogits
from infer_engine.executor.parallel_model import ParallelModel
from infer_engine.executor.process_group import rank_device
from infer_engine.messages import TokenOutput
from infer_engine.model_runner.loading.memory_profile import run_largest_step
from infer_engine.model_runner.loading.rank_loading import load_rank
from infer_engine.protocol import (
    CheckpointUnusableError,
    EngineConfig,
    EngineStartError,
    SamplingParams,
    StructuredOutputs,
)
from infer_engine.sizing import KVMemory
from infer_engine.step_runner import EngineFailedError
from infer_models.tensor_parallel import Shard
from infer_proofs.engine.cores import GIVE_UP_S
from infer_proofs.engine.faults import Fault, Stage
from infer_proofs.engine.formula import tokens_of
from infer_proofs.engine.models import ALL_FAMILIES, GREEDY, MAX_SEQ_LEN, ModelEngine, random_prompt, save_servable
from infer_proofs.engine.processes import rank_processes
from infer_proofs.models import save_tiny_nanogpt, save_tiny_tokenizer

pytestmark = pytest.mark.usefixtures("no_file_of_ranks_is_left")

CPU = torch.device("cpu")
NUM_TOKENS = 12
KINDS = {
    "greedy": GREEDY,
    "sampled": SamplingParams(temperature=1.2, top_k=40, top_p=0.9, min_p=0.01, ignore_eos=True),
    "penalties": SamplingParams(repetition_penalty=1.5, frequency_penalty=1.0, logit_bias={7: 2.0}, ignore_eos=True),
    "logprobs": SamplingParams(temperature=0.8, logprobs=3, ignore_eos=True),
    "prompt_logprobs": SamplingParams(temperature=0, prompt_logprobs=2, ignore_eos=True),
    "one_token": GREEDY,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "small_chunks": {"prefill_chunk_size": 5, "max_num_batched_tokens": 16, "block_size": 4},
    "contiguous": {"batching_mode": "static"},
    "whole_prompts": {"use_chunked_prefill": False},
    "scheduled_ahead": {"use_async_scheduling": True, "prefill_chunk_size": 5, "block_size": 4},
}


@contextmanager
def ranks_over(folder: Path, size: int = 2, **config: Any) -> Iterator[ModelEngine]:
    """Yield an engine of `size` ranks in and below this process; nothing may be left of it."""
    engine = ModelEngine(folder, tensor_parallel_size=size, **config)
    try:
        yield engine
    finally:
        engine.close()
    assert not rank_processes(psutil.Process())


def submit_all(engine: ModelEngine) -> None:
    for number, (kind, params) in enumerate(KINDS.items()):
        length = 1 if kind == "one_token" else 20 + 3 * number
        engine.submit(kind, random_prompt(length, seed=number), params=params, max_tokens=NUM_TOKENS, seed=number)
        engine.step()  # so that prompts and decodes meet in a step


def seen(outputs: dict[str, list[TokenOutput]]) -> dict[str, Any]:
    """Return what differs if a logit does: tokens, and the ids of log-probabilities."""
    return {
        request_id: (
            [token_id for output in of_one for token_id in output.token_ids],
            [[i for i, _ in each.top] for output in of_one for each in output.logprobs or ()],
            [
                None if each is None else (each.token_id, each.rank, [i for i, _ in each.top])
                for output in of_one
                for each in output.prompt_logprobs or ()
            ],
            of_one[-1].finish_reason,
            of_one[-1].error,
        )
        for request_id, of_one in outputs.items()
    }


def answers_of(engine: ModelEngine) -> dict[str, Any]:
    submit_all(engine)
    return seen(engine.run())


@pytest.mark.covers("replicas/ranks", "replicas/ranks-with-everything")
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=name, marks=() if name in ("contiguous", "scheduled_ahead") else pytest.mark.full)
        for name, config in CONFIGS.items()
    ],
)
@pytest.mark.parametrize("name", ["gemma3", pytest.param("llama", marks=pytest.mark.full)])
def test_two_ranks_answer_as_one(folder_of: Callable[[str], Path], name: str, config: dict[str, Any]) -> None:
    compare_ranks(folder_of(name), config)


def family_marks(name: str) -> pytest.MarkDecorator:
    """The full run takes families whose divisions differ; weights of all are divided in the models' tests."""
    divided_in_other_ways = ("olmo3", "gemma3", "qwen3_moe", "phi3", "qwen3_5", "granitemoehybrid", "lfm2")
    return pytest.mark.full if name in divided_in_other_ways else pytest.mark.exhaustive


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=() if name in ("gpt_oss", "qwen3_next") else family_marks(name))
        for name in ALL_FAMILIES
    ],
)
def test_two_ranks_of_every_family_answer_as_one(folder_of: Callable[[str], Path], family: str) -> None:
    compare_ranks(folder_of(family), CONFIGS["small_chunks"])


def compare_ranks(folder: Path, config: dict[str, Any]) -> None:
    """Compare what two ranks answer with what one engine does."""
    one = ModelEngine(folder, **config)
    expected = answers_of(one)
    with ranks_over(folder, **config) as two:
        assert answers_of(two) == expected
        assert two.logits.keys() == one.logits.keys()
        assert max(float((two.logits[key] - row).abs().max()) for key, row in one.logits.items()) <= 1e-4


@pytest.mark.covers("replicas/ranks-every-family")
@pytest.mark.parametrize(
    ("name", "size", "overrides"),
    [
        ("llama", 2, {"vocab_size": 321, "num_key_value_heads": 1}),
        pytest.param("qwen3", 2, {"tie_word_embeddings": True}, marks=pytest.mark.full),
        pytest.param("gemma3", 4, {}, marks=pytest.mark.exhaustive),
    ],
)
def test_any_division_answers_as_one(tmp_path: Path, name: str, size: int, overrides: dict[str, Any]) -> None:
    save_servable(name, tmp_path, **overrides)
    expected = answers_of(ModelEngine(tmp_path))
    with ranks_over(tmp_path, size) as engine:
        assert answers_of(engine) == expected


@pytest.mark.covers("replicas/ranks-every-family")
@pytest.mark.full
def test_nanogpt_with_its_biases_answers_as_one(tmp_path: Path) -> None:
    save_tiny_nanogpt(tmp_path, vocab_size=320, max_position_embeddings=64)
    save_tiny_tokenizer(tmp_path, vocab_size=320)
    expected = answers_of(ModelEngine(tmp_path, max_seq_len=64))
    with ranks_over(tmp_path, max_seq_len=64) as engine:
        assert answers_of(engine) == expected


@pytest.mark.covers("replicas/ranks-with-everything", "replicas/ranks-states")
@pytest.mark.parametrize("name", ["llama", "granitemoehybrid", pytest.param("qwen3_5", marks=pytest.mark.full)])
def test_cached_prefixes_preemption_and_grammars_work_with_ranks(folder_of: Callable[[str], Path], name: str) -> None:
    folder = folder_of(name)
    digits = SamplingParams(structured_outputs=StructuredOutputs(regex="[0-9]{4,8}"), max_tokens=10, seed=1)
    config: dict[str, Any] = {"dtype": "float32", "max_seq_len": 64, "block_size": 4, "num_kv_blocks": 24}
    prompts = [random_prompt(20, seed=seed) for seed in range(4)]
    answers = []
    for size in (1, 2):
        llm = LLM(str(folder), config=EngineConfig(tensor_parallel_size=size, **config))
        params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
        texts = [llm.generate(each, params, use_tqdm=False) for each in (prompts, prompts[:1], prompts[:1])]
        texts.append(llm.generate([[5, 6]], digits, use_tqdm=False))
        answers.append([completion.token_ids for of_call in texts for completion in of_call])
        assert texts[-1][0].text.isdigit()
        assert llm.stats.num_preemptions > 0
        assert llm.stats.num_cached_tokens > 0
        del llm
        gc.collect()
    assert answers[0] == answers[1]
    assert not rank_processes(psutil.Process()), "an `LLM` ends its ranks"


@pytest.mark.covers("replicas/ranks-states")
@pytest.mark.parametrize("name", ["qwen3_next", "granitemoehybrid", "lfm2"])
def test_the_states_of_two_ranks_take_the_memory_of_one_s(folder_of: Callable[[str], Path], name: str) -> None:
    config = EngineConfig(dtype="float32", device="cpu", tensor_parallel_size=2, state_cache_memory="8MiB")
    memory = KVMemory(share=2**28, free=2**28)
    whole, *ranks = (
        load_rank(config, folder_of(name), device=CPU, shard=shard)
        for shard in (None, Shard(rank=0, size=2), Shard(rank=1, size=2))
    )
    one = whole.size_states(memory)
    for rank in ranks:
        states = rank.size_states(memory)
        assert 2 * states.bytes_per_slot == one.bytes_per_slot
        assert states.num_slots in (2 * one.num_slots, 2 * one.num_slots + 1)
        pool = rank.allocate_state_pool(states.num_slots)
        assert pool is not None
        assert sum(each.nbytes for each in pool.tensors()) == states.num_slots * states.bytes_per_slot


@pytest.mark.covers("replicas/ranks-kv-blocks", "replicas/ranks-unsupported")
def test_the_largest_step_is_measured_on_all_ranks_and_a_second_engine_with_ranks_is_refused(
    folder_of: Callable[[str], Path],
) -> None:
    with ranks_over(folder_of("llama")) as engine:
        rows: list[int] = []
        own = leading_model(engine)._own  # noqa: SLF001 - to see what rank 0 computes
        own.model.lm_head.register_forward_hook(lambda _module, _inputs, logits: rows.append(logits.shape[0]))
        run_largest_step(engine.observer.runner, max_tokens=302, max_batch_size=3, max_seq_len=MAX_SEQ_LEN)
        assert rows[1:] == [256, 302 - 3 - 256, 3]
        with pytest.raises(ValueError, match="use a process of its own"):
            ModelEngine(folder_of("llama"), tensor_parallel_size=2)
        assert len(engine.complete([5, 6, 7])) == 6  # the ranks are still in step


def leading_model(engine: ModelEngine) -> ParallelModel:
    """Return what the engine's runner computes with."""
    runner: Any = engine.observer.runner
    while not hasattr(runner, "model"):
        runner = runner._inner  # noqa: SLF001 - doubles wrap the runner
    model: ParallelModel = runner.model
    return model


@pytest.mark.covers("replicas/ranks-kv-blocks")
@pytest.mark.parametrize("of_rank_0", [2**20, 2**60])
def test_the_least_memory_of_all_ranks_decides(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, of_rank_0: int
) -> None:
    monkeypatch.setattr(loading, "kv_memory", lambda *_, **__: KVMemory(share=of_rank_0, free=of_rank_0))
    available = psutil.virtual_memory().available
    with pytest.raises(ValueError, match=r"`num_kv_blocks` is 100000000 .* bytes are free") as caught:
        ModelEngine(folder_of("llama"), tensor_parallel_size=2, num_kv_blocks=10**8)
    free = int(str(caught.value).split("but ")[1].split(" bytes")[0])
    if of_rank_0 < available:
        assert free == of_rank_0
    else:
        assert free < available, "rank 1 has no more than the machine"
    assert not rank_processes(psutil.Process())


@pytest.mark.covers("replicas/rank-dies")
@pytest.mark.parametrize("when", ["between steps", "in a step"])
def test_a_rank_that_is_killed_ends_the_engine(
    folder_of: Callable[[str], Path], caplog: pytest.LogCaptureFixture, when: str
) -> None:
    with ranks_over(folder_of("llama")) as engine:
        engine.submit("a", [5, 6, 7], max_tokens=50)
        engine.step()
        [rank] = rank_processes(psutil.Process())
        workers = leading_model(engine)._workers  # noqa: SLF001 - to wait for the end of a rank
        if when == "in a step":
            rank.suspend()  # it will not answer
            threading.Timer(1.0, rank.kill).start()
        else:
            rank.kill()
            assert workers.is_lost_within(GIVE_UP_S)
        for _ in range(2):
            with pytest.raises(EngineFailedError, match="a rank has ended"):
                engine.step()
        assert workers.is_lost_within(GIVE_UP_S)
    assert f"The process of rank 1, {rank.pid}, ended with exit code -9" in caplog.text


@pytest.mark.covers("replicas/rank-dies")
def test_an_error_of_another_rank_is_in_the_log_and_ends_the_engine(
    folder_of: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    with ranks_over(folder_of("llama")) as engine:
        workers = leading_model(engine)._workers  # noqa: SLF001 - to send what rank 0 never sends
        [rank] = rank_processes(psutil.Process())
        workers.send(ComputeLogits(num_rows=0, rows=[10**6]))  # before any step
        rank.wait(60)
        engine.submit("a", [5, 6, 7])
        with pytest.raises(EngineFailedError):
            engine.step()
    assert "Rank 1 failed; the engine fails with it." in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.covers("replicas/rank-dies")
def test_an_error_of_rank_0_in_a_step_ends_the_engine(folder_of: Callable[[str], Path]) -> None:
    with ranks_over(folder_of("llama")) as engine:
        own: Any = leading_model(engine)._own  # noqa: SLF001 - to break it

        def break_it(*_: object) -> None:
            raise RuntimeError("broken on purpose")

        own.hidden_states = break_it
        engine.submit("a", [5, 6, 7])
        with pytest.raises(EngineFailedError, match="rank 0 of 2 failed, and the others wait for it"):
            engine.step()  # no attempt to repeat it: the other rank is in another place
        del own.hidden_states
        with pytest.raises(EngineFailedError):
            engine.step()


def test_an_error_outside_what_ranks_do_together_ends_its_request_alone(folder_of: Callable[[str], Path]) -> None:
    expected = ModelEngine(folder_of("llama")).complete([5, 6, 7])
    stages: tuple[Stage, ...] = ("forward", "sample")
    faults = [Fault(stage=stage, request_id=f"wrong {stage}") for stage in stages]
    with ranks_over(folder_of("llama"), faults=faults) as engine:
        for stage in stages:
            engine.submit(f"wrong {stage}", [9, 8])
            engine.submit(f"right beside {stage}", [5, 6, 7])
            outputs = engine.run()
            assert outputs[f"wrong {stage}"][-1].error is not None
            assert tokens_of(outputs[f"right beside {stage}"]) == expected
            assert engine.complete([5, 6, 7]) == expected


@pytest.mark.covers("replicas/rank-cannot-load")
def test_a_rank_that_cannot_load_is_the_start_s_error(tmp_path: Path) -> None:
    config = EngineConfig(model=str(tmp_path), tensor_parallel_size=2)
    killed = "The process of rank 1 was ended by SIGKILL, perhaps for lack of memory, while it loaded"
    cases = ((None, CheckpointUnusableError, "config.json is missing"), (signal.SIGKILL, EngineStartError, killed))
    for damage, error, message in cases:
        workers = Workers(config, tmp_path, device=CPU)
        if damage is not None:
            os.kill(workers.pids[0], damage)
        with pytest.raises(error, match=message):
            workers.join()
        workers.close()


def test_a_closed_core_ends_its_ranks_and_may_be_closed_again(folder_of: Callable[[str], Path]) -> None:
    config = EngineConfig(model=str(folder_of("llama")), tensor_parallel_size=2, kv_cache_memory="8MiB")
    built = build_core(config)
    [rank] = rank_processes(psutil.Process())
    built.close()
    built.close()
    rank.wait(GIVE_UP_S)


@pytest.mark.covers("replicas/ranks-unsupported")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tensor_parallel_size": 0}, "`tensor_parallel_size` is 0; it must be a whole number from 1 to 64"),
        ({"use_cpu_graphs": True}, "`use_cpu_graphs` is True but `tensor_parallel_size` is 2 and ranks communicate"),
        (
            {"speculative_config": '{"method": "mtp"}'},
            "and the layer of the model that drafts is not divided among ranks",
        ),
        ({"batch_invariant": True}, "`batch_invariant` is True but `tensor_parallel_size` is 2 and the order of sums"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared as it stands
        EngineConfig(**({"tensor_parallel_size": 2} | fields))
    assert message in str(caught.value)


@pytest.mark.covers("replicas/ranks-sizes")
def test_sizes_that_do_not_divide_the_model_are_refused_before_anything_starts(
    folder_of: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    with pytest.raises(ValueError, match=r"`tensor_parallel_size` is 3, .* use one of 1, 2, 4\."):
        ModelEngine(folder_of("llama"), tensor_parallel_size=3)
    assert not rank_processes(psutil.Process())


@pytest.mark.covers("replicas/ranks-unsupported")
def test_a_rank_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert rank_device(CPU, 5) == CPU
    assert rank_device(torch.device("cuda"), 2) == torch.device("cuda:2")
    assert rank_device(torch.device("cuda:1"), 1) == torch.device("cuda:2")
    with pytest.raises(ValueError, match="rank 2 would have `cuda:3` and this machine has 3"):
        rank_device(torch.device("cuda:1"), 2)
