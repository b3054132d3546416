"""An engine that computes nothing: its tokens are ready-made, so what is measured is all the rest."""

import threading
import time
from pathlib import Path

from infer_engine.frontend.async_engine import AsyncEngine
from infer_engine.frontend.input_processor import InputLimits, InputProcessor
from infer_engine.ipc.core_client import CoreCallbacks
from infer_engine.messages import Abort, Finish, Inspect, StepResult, Submit, ToCore, TokenOutput
from infer_engine.protocol import EngineInfo, EngineStats, FinishReason
from infer_models.hub import demo_model_folder
from infer_models.text import Tokenizer

MAX_SEQ_LEN = 1_000_000
TEXT = "Now is the winter of our discontent made glorious summer by this sun of York; and all the clouds that lour'd "


class NullCore:
    """Gives every sequence its next token at every step. Implements `infer_engine.ipc.core_client.CoreClient`."""

    def __init__(self, token_ids: list[int], *, step_s: float) -> None:
        """Sequences get `token_ids` over and over; a step takes `step_s` seconds, or no time at all."""
        self._token_ids = token_ids
        self._step_s = step_s
        self._made: dict[str, tuple[Submit, int]] = {}
        self._lock = threading.Condition()
        self._is_running = True

    def start(self, callbacks: CoreCallbacks) -> None:
        """Begin to step."""
        threading.Thread(target=self._run, args=(callbacks,), daemon=True).start()

    def send(self, message: ToCore) -> None:
        """Take a sequence, or forget one."""
        with self._lock:
            match message:
                case Submit():
                    self._made[message.request_id] = message, 0
                case Abort() | Finish():
                    self._made.pop(message.request_id, None)
                case Inspect():
                    pass
            self._lock.notify()

    def stop(self) -> None:
        """Step no more."""
        with self._lock:
            self._is_running = False
            self._lock.notify()

    def join(self) -> None:
        """The thread has nothing left to do."""

    def abandon(self) -> None:
        """Nothing to kill."""

    def step_age_s(self) -> float | None:
        """No step takes long."""
        return None

    def describe_step(self) -> str:
        """Nowhere."""
        return ""

    def _run(self, callbacks: CoreCallbacks) -> None:
        next_s = time.monotonic()
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._made or not self._is_running)
                if not self._is_running:
                    break
                outputs = [self._next(submit, num_made) for submit, num_made in tuple(self._made.values())]
            callbacks.on_result(StepResult(outputs=outputs, admitted=[], stats=EngineStats()))
            next_s = max(next_s + self._step_s, time.monotonic())
            time.sleep(max(0.0, next_s - time.monotonic()) if self._step_s else 0)
        callbacks.on_ended()

    def _next(self, submit: Submit, num_made: int) -> TokenOutput:
        num_made += 1
        is_last = num_made == submit.max_tokens
        if is_last:
            del self._made[submit.request_id]
        else:
            self._made[submit.request_id] = submit, num_made
        return TokenOutput(
            request_id=submit.request_id,
            token_ids=[self._token_ids[num_made % len(self._token_ids)]],
            finish_reason=FinishReason.LENGTH if is_last else None,
            num_prompt_tokens=len(submit.prompt_token_ids),
            num_completion_tokens=num_made,
        )


def null_engine(*, step_s: float = 0.0, folder: Path | None = None) -> AsyncEngine:
    """Return a running engine with the tokenizer of the demo model, or of the checkpoint in `folder`."""
    tokenizer = Tokenizer.from_folder(folder or demo_model_folder(), tool_call_format="hermes")
    info = EngineInfo(
        model="null",
        architecture="null",
        num_parameters=0,
        dtype="float32",
        device="cpu",
        vocab_size=tokenizer.vocab_size,
        max_seq_len=MAX_SEQ_LEN,
        num_kv_blocks=1,
        block_size=64,
        max_batch_size=4096,
    )
    return AsyncEngine(
        NullCore(tokenizer.encode(TEXT, add_special_tokens=False), step_s=step_s),
        InputProcessor(tokenizer, InputLimits(vocab_size=info.vocab_size, max_seq_len=info.max_seq_len), seed=0),
        info=info,
        stats=EngineStats(),
        max_waiting_requests=4096,
    )
