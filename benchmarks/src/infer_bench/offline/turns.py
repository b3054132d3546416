"""The computed tokens of a later turn of a conversation, and the time of its first token beside that of the first turn.

    appended       the conversation so far, the answer and a new message
    regenerated    the same prompt again
    edited         the last message in other words
    in turns       the next turn of the first conversation, after a turn of a second one

Prompts are random tokens, with a special token where a message begins, as templates have it. With `--rounds` the whole
is done again with other tokens, and medians are shown. A turn computes its new message and at most one block, else the
exit code is 1.

    uv run infer-bench turns
    uv run infer-bench turns --shape qwen3.5-0.8b-8k --num-tokens 4000
"""

import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infer_bench.checkpoints import write_tokenizer
from infer_bench.limits import Limit, judge
from infer_bench.results import argument_parser, save, table
from infer_bench.shapes import NO_DRAFTS, SHAPES, write_config
from infer_engine import LLM, SamplingParams

BEGINS_MESSAGE = 2
"""The special token before a message, `<eos>` of the tokenizer that `write_tokenizer` makes."""
MESSAGE_TOKENS, ANSWER_TOKENS = 200, 40


class Turns:
    """Two conversations with one engine, turn by turn."""

    def __init__(self, llm: LLM, *, vocab_size: int, seed: int) -> None:
        """Draw messages by `seed`."""
        self._llm = llm
        self._vocab_size = vocab_size
        self._random = random.Random(seed)  # noqa: S311 - a workload, not a secret

    def message(self, num_tokens: int) -> list[int]:
        """Return a message of random tokens that begins with a special one."""
        return [BEGINS_MESSAGE, *(self._random.randrange(3, self._vocab_size) for _ in range(num_tokens - 1))]

    def conversation(self, num_tokens: int) -> list[int]:
        """Return messages of so many tokens together."""
        tokens: list[int] = []
        while len(tokens) < num_tokens:
            tokens += self.message(min(MESSAGE_TOKENS, max(1, num_tokens - len(tokens))))
        return tokens

    def answer(self, prompt: list[int]) -> tuple[list[int], float, int]:
        """Return the answer to a prompt, the seconds to its first token, and the prompt's tokens that were computed."""
        first = SamplingParams(temperature=0, ignore_eos=True, max_tokens=1)
        started = time.perf_counter()
        (completion,) = self._llm.generate([prompt], first, use_tqdm=False)
        seconds = time.perf_counter() - started
        rest = SamplingParams(temperature=0, ignore_eos=True, max_tokens=ANSWER_TOKENS)
        (whole,) = self._llm.generate([prompt], rest, use_tqdm=False)
        return list(whole.token_ids), seconds, len(prompt) - completion.num_cached_tokens


def measure(llm: LLM, *, num_tokens: int, vocab_size: int, seed: int) -> dict[str, dict[str, float]]:
    """Return, by turn, the seconds to its first token and how many tokens it computed beyond its new message."""
    turns = Turns(llm, vocab_size=vocab_size, seed=seed)
    prompt, other = turns.conversation(num_tokens), turns.conversation(num_tokens)
    results: dict[str, dict[str, float]] = {}

    def ask(name: str, prompt: list[int], *, num_new: int) -> list[int]:
        answer, seconds, computed = turns.answer(prompt)
        results[name] = {"ttft_s": seconds, "computed": computed, "beyond": computed - num_new}
        return answer

    answer = ask("cold", prompt, num_new=num_tokens)
    ask("regenerated", prompt, num_new=0)
    edited = [*prompt[: -prompt[::-1].index(BEGINS_MESSAGE) - 1], *turns.message(MESSAGE_TOKENS)]
    ask("edited", edited, num_new=MESSAGE_TOKENS)
    appended = [*prompt, *answer, *turns.message(MESSAGE_TOKENS)]
    answer = ask("appended", appended, num_new=MESSAGE_TOKENS + 1)  # the last token of an answer is not computed in it
    turns.answer(other)
    ask("in turns", [*appended, *answer, *turns.message(MESSAGE_TOKENS)], num_new=MESSAGE_TOKENS + 1)
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table and save the result; return 1 if a turn computes more than it should."""
    parser = argument_parser(__doc__, quick="one round of 600 tokens", rounds=3, shape="qwen3.5-80m-8k")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--num-tokens", type=int, default=15_000, help="of the first prompt")
    args = parser.parse_args(arguments)
    num_tokens, rounds = (600, 1) if args.quick else (args.num_tokens, args.rounds)

    options: dict[str, Any] = {"max_batch_size": 4, "max_seq_len": num_tokens + 1_000, "device": args.device}
    vocab_size = SHAPES[args.shape]["vocab_size"]
    with tempfile.TemporaryDirectory() as folder:
        write_config(args.shape, Path(folder))
        write_tokenizer(Path(folder), vocab_size=vocab_size, max_length=options["max_seq_len"])
        llm = LLM(folder, load_format="dummy", **options, **NO_DRAFTS)
    block_size = llm.info.block_size
    runs = [measure(llm, num_tokens=num_tokens, vocab_size=vocab_size, seed=seed) for seed in range(rounds)]

    cold = statistics.median(run["cold"]["ttft_s"] for run in runs)
    rows = []
    for name in runs[0]:
        ttft = statistics.median(run[name]["ttft_s"] for run in runs)
        computed = max(run[name]["computed"] for run in runs)
        rows.append([name, f"{computed:.0f}", f"{1e3 * ttft:.1f}", f"{100 * ttft / cold:.1f}"])
    head = [f"{args.shape}, {num_tokens} tokens", "computed", "first token, ms", "of cold, %"]
    print(f"\n{table(head, rows)}")
    if not args.quick:
        save(f"turns-{args.shape}", {"shape": args.shape, "num_tokens": num_tokens, "runs": runs}, args.out)
    return judge([limit(run, block_size) for run in runs])


def limit(run: dict[str, dict[str, float]], block_size: int) -> Limit:
    """Return the limit of what turns compute beyond their new message."""
    return Limit(
        what="tokens that a turn computes beyond its new message",
        value=max(each["beyond"] for each in run.values()),
        most=block_size,
    )
