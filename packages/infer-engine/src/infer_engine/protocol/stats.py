"""`EngineStats`: counts and times of an engine, after a step."""

import msgspec

NUM_STEP_SIZES = 17
"""Entries of `steps_by_tokens`: sixteen powers of two, and one for larger steps."""


MAX_DRAFT_TOKENS = 16
"""Most drafts of a request in a step."""


class DraftCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Drafts of one request so far.

    Attributes:
        num_drafted: tokens that were drafted.
        num_accepted: those of them that it has taken.
        num_predicted: drafts that were read from the request's `prediction`.
        num_predicted_accepted: those of them that it has taken.
    """

    num_drafted: int = 0
    num_accepted: int = 0
    num_predicted: int = 0
    num_predicted_accepted: int = 0

    def plus(self, *, drafted: int = 0, accepted: int = 0, are_predicted: bool) -> "DraftCounts":
        """Return the counts with so many more."""
        return DraftCounts(
            num_drafted=self.num_drafted + drafted,
            num_accepted=self.num_accepted + accepted,
            num_predicted=self.num_predicted + drafted * are_predicted,
            num_predicted_accepted=self.num_predicted_accepted + accepted * are_predicted,
        )

    def __add__(self, other: "DraftCounts") -> "DraftCounts":
        """Return the sums of both."""
        return DraftCounts(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


NO_DRAFTS = DraftCounts()


class StepCounts(msgspec.Struct, kw_only=True):
    """Counts and times so far. A value "since the start" never decreases.

    Attributes:
        num_steps: steps computed since the start.
        num_leaked_blocks: allocated blocks that no sequence has, found by the block audit; 0 unless there is a bug.
        num_preemptions: requests that lost their memory and returned to the queue, since the start.
        num_prompt_tokens: prompt tokens of the requests that have their first token, since the start.
        num_cached_tokens: those of them that came from the prefix cache.
        num_computed_tokens: tokens computed since the start, in prefills, recomputations and decodes.
        num_generated_tokens: tokens generated since the start. This includes tokens that are discarded because a stop
            string was found one step later.
        num_finished: requests that finished, since the start.
        num_aborted: requests that were aborted, since the start.
        num_failed: requests that failed inside a step, since the start.
        num_failed_passes: passes that failed, in scheduling or computation, since the start.
        num_drafts: how often tokens of a request were drafted, since the start.
        num_draft_tokens: tokens that were drafted.
        num_accepted_tokens: those of them that were accepted.
        num_accepted_by_position: those by their place among the drafts of a request in a step, from 0.
        num_step_tokens: tokens computed in the latest step.
        schedule_s: seconds of scheduling in the latest step.
        execute_s: seconds of forward passes in the latest step.
        sample_s: seconds of sampling in the latest step, including the wait for the device.
        busy_s: seconds spent in steps since the start.
        steps_by_tokens: steps since the start, by computed tokens: up to 1, 2, 4, 8, ... 32,768, and more.
    """

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
    num_failed_passes: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_by_position: list[int] = msgspec.field(default_factory=lambda: [0] * MAX_DRAFT_TOKENS)
    num_step_tokens: int = 0
    schedule_s: float = 0.0
    execute_s: float = 0.0
    sample_s: float = 0.0
    busy_s: float = 0.0
    steps_by_tokens: list[int] = msgspec.field(default_factory=lambda: [0] * NUM_STEP_SIZES)


class EngineStats(StepCounts, frozen=True, kw_only=True):  # type: ignore[misc]  # msgspec freezes a copy's fields too
    """Statistics after a step: the counts so far, and the state of queue and memory.

    Attributes:
        num_running: requests that hold KV memory.
        num_waiting: requests in the queue, preempted ones included.
        prefill_tokens_beside_decodes: most prompt tokens of the latest pass that had a limit of them beside its
            decodes; 0 before the first.
        num_blocks: all KV blocks, of all groups of layers.
        num_free_blocks: blocks that no request holds.
        num_idle_blocks: free blocks that are kept for the cached prefix in them.
        num_evictions: blocks whose cached prefix was evicted, since the start.
        kv_usage: share of the KV cache that requests hold, in [0, 1], for the fullest group of layers, or of the slots
            of states if that is more.
        num_state_slots: slots for the states of sequences; 0 for a model without states, as the three below.
        num_free_state_slots: slots that no request holds, those of kept states included.
        num_kept_states: free slots whose state is kept for the prefix that it is of.
        num_state_evictions: kept states that were evicted, since the start.
        num_replaced: cores that were lost and replaced, since the start.
        replicas: those of each replica, if there are several; theirs have none.
    """

    num_running: int = 0
    num_waiting: int = 0
    prefill_tokens_beside_decodes: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_idle_blocks: int = 0
    num_evictions: int = 0
    kv_usage: float = 0.0
    num_state_slots: int = 0
    num_free_state_slots: int = 0
    num_kept_states: int = 0
    num_state_evictions: int = 0
    num_replaced: int = 0
    replicas: list["EngineStats"] = []
