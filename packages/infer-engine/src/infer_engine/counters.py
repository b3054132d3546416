"""`Counters`: what an `EngineStats` says of the past. Knows numbers only."""

from dataclasses import dataclass

from infer_engine.protocol import EngineStats
from infer_engine.scheduling import SequenceTables


@dataclass(slots=True)
class Counters:
    """Counts since the start and times of the latest step; the fields are those of `EngineStats`."""

    num_steps: int = 0
    num_leaked_blocks: int = 0
    num_preemptions: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    num_generated_tokens: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    num_failed: int = 0
    num_failed_steps: int = 0
    num_step_tokens: int = 0
    schedule_s: float = 0.0
    execute_s: float = 0.0
    sample_s: float = 0.0
    busy_s: float = 0.0

    def begin_step(self) -> None:
        """Forget the times of the step before."""
        self.num_step_tokens = 0
        self.schedule_s = self.execute_s = self.sample_s = 0.0

    def snapshot(self, tables: SequenceTables, *, num_running: int, num_waiting: int) -> EngineStats:
        """Return these counts, and what `tables` say of the present."""
        return EngineStats(
            num_steps=self.num_steps,
            num_running=num_running,
            num_waiting=num_waiting,
            num_blocks=tables.num_blocks,
            num_free_blocks=tables.num_free_blocks,
            num_idle_blocks=tables.num_idle_blocks,
            kv_usage=tables.usage,
            num_leaked_blocks=self.num_leaked_blocks,
            num_preemptions=self.num_preemptions,
            num_evictions=tables.num_evictions,
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_computed_tokens=self.num_computed_tokens,
            num_generated_tokens=self.num_generated_tokens,
            num_finished=self.num_finished,
            num_aborted=self.num_aborted,
            num_failed=self.num_failed,
            num_failed_steps=self.num_failed_steps,
            num_step_tokens=self.num_step_tokens,
            schedule_s=self.schedule_s,
            execute_s=self.execute_s,
            sample_s=self.sample_s,
            busy_s=self.busy_s,
        )
