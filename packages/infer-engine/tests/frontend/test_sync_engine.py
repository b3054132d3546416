"""A core that the caller steps: outputs reach their requests, whichever call steps; waits; aborts; failures."""

from infer_engine.frontend.input_processor import InputLimits, InputProcessor, ProcessedInput
from infer_engine.frontend.sync_engine import SyncEngine
from infer_engine.messages import Abort, Finish, StepResult
from infer_engine.protocol import FinishReason, GenerateRequest, RequestFailure, SamplingParams, StepOutput
from infer_models.text import Tokenizer, dummy_tokenizer
from infer_proofs.engine.cores import (
    MAX_SEQ_LEN,
    VOCAB_SIZE,
    FailingTokenizer,
    ScriptedCore,
    scripted_tokens,
    tokens_of,
)
from infer_proofs.text import byte_level


class Calls:
    """Prepares requests, and drives a core until they are done."""

    def __init__(self, core: ScriptedCore | None = None, *, tokenizer: Tokenizer | None = None) -> None:
        self.core = core or ScriptedCore()
        self.waits_s: list[float] = []
        self.engine = SyncEngine(self.core, sleep=self.waits_s.append)
        limits = InputLimits(vocab_size=VOCAB_SIZE, max_seq_len=MAX_SEQ_LEN)
        self.input_processor = InputProcessor(tokenizer or dummy_tokenizer(VOCAB_SIZE), limits, seed=0)

    def prepare(self, prompt: list[int], *, stop: tuple[str, ...] = ()) -> ProcessedInput:
        request = GenerateRequest(prompt=prompt, params=SamplingParams(max_tokens=6, stop=stop))
        [prepared] = self.input_processor.process(request, ids=self.input_processor.reserve_ids(request))
        return prepared

    def start(self, prompt: list[int], *, stop: tuple[str, ...] = ()) -> list[StepOutput]:
        outputs: list[StepOutput] = []
        self.engine.submit(self.prepare(prompt, stop=stop), outputs.append)
        return outputs

    def finish(self, *outputs: list[StepOutput]) -> None:
        while not all(made and made[-1].finished for made in outputs):
            self.engine.step()


def test_outputs_go_to_their_requests_whichever_call_steps() -> None:
    calls = Calls()
    first = calls.start([1])
    calls.engine.step()
    second = calls.start([2])
    calls.finish(second)
    assert tokens_of(first) == scripted_tokens([1], 6)
    assert tokens_of(second) == scripted_tokens([2], 6)


def test_a_step_returns_the_snapshot_after_it() -> None:
    calls = Calls()
    calls.start([1])
    assert calls.engine.step().num_running == 1


def test_a_stop_string_frees_the_memory_and_tells_the_core_which_tokens_count() -> None:
    calls = Calls()
    text = dummy_tokenizer(VOCAB_SIZE).decode(scripted_tokens([5], 3))
    outputs = calls.start([5], stop=(text[-1],))
    calls.finish(outputs)
    assert outputs[-1].finish_reason is FinishReason.STOP
    assert calls.core.messages[-1] == Finish(request_id="r0", num_completion_tokens=len(tokens_of(outputs)))
    assert not calls.core.has_work


def test_an_aborted_sequence_is_forgotten_and_one_that_ended_left_alone() -> None:
    calls = Calls()
    ended, aborted = calls.start([1]), calls.start([2])
    calls.engine.step()
    calls.engine.abort("r1")
    calls.finish(ended)
    calls.engine.abort("r0")
    assert len(aborted) == 1
    assert calls.core.messages[2:] == [Abort(request_id="r1")]
    assert not calls.core.has_work


def test_a_request_that_fails_ends_with_its_error_and_the_others_with_their_tokens() -> None:
    calls = Calls()
    failing, sound = calls.start([1]), calls.start([2])
    calls.core.failures["r0"] = RequestFailure(message="no", code="step_failed")
    calls.finish(failing, sound)
    assert failing[-1].error == RequestFailure(message="no", code="step_failed")
    assert tokens_of(sound) == scripted_tokens([2], 6)


def test_text_that_fails_ends_its_own_sequence_alone_and_frees_its_memory() -> None:
    calls = Calls(tokenizer=FailingTokenizer(byte_level(), token_id=scripted_tokens([1], 2)[1]))
    failing, sound = calls.start([1]), calls.start([2])
    calls.finish(failing, sound)
    assert failing[-1].error is not None
    assert tokens_of(failing) == scripted_tokens([1], 1)
    assert tokens_of(sound) == scripted_tokens([2], 6)
    assert Finish(request_id="r0", num_completion_tokens=1) in calls.core.messages


class TwoPassCore(ScriptedCore):
    """A core whose steps give every request two outputs, as `prefill_first` does where a prompt ends."""

    def step(self) -> StepResult:
        first, second = super().step(), super().step()
        return StepResult(outputs=[*first.outputs, *second.outputs], admitted=first.admitted, stats=second.stats)


def test_what_a_step_made_after_a_stop_string_is_dropped() -> None:
    calls = Calls(TwoPassCore())
    outputs = calls.start([1], stop=(dummy_tokenizer(VOCAB_SIZE).decode(scripted_tokens([1], 1)),))
    calls.finish(outputs)
    assert tokens_of(outputs) == scripted_tokens([1], 1)
    assert calls.core.messages[-1] == Finish(request_id="r0", num_completion_tokens=1)


def test_a_forming_batch_is_waited_for_asleep() -> None:
    calls = Calls(ScriptedCore(forms_batches_of=2, forming_s=1000.0))
    calls.start([1])
    calls.engine.step()
    [wait_s] = calls.waits_s
    assert 990.0 < wait_s <= 1000.0
    calls.finish(calls.start([2]))
    assert len(calls.waits_s) == 1
