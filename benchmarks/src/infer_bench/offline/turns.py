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
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infer_bench.checkpoints import write_tokenizer
from infer_bench.limits import Limit, judge
from infer_bench.results import argument_parser, medians, save, seconds_of, table
from infer_bench.shapes import NO_DRAFTS, SHAPES, write_config
from infer_engine import LLM, SamplingParams

BEGINS_MESSAGE = 2
"""The special token before a message, `<eos>` of the tokenizer that `write_tokenizer` makes."""
MESSAGE_TOKENS, ANSWER_TOKENS = 200, 40
Turns = dict[str, dict[str, float]]
"""By turn: the seconds to its first token, how many tokens it computed, and how many beyond its new message."""


def measure(llm: LLM, *, num_tokens: int, vocab_size: int, seed: int) -> Turns:
    """Return the turns of two conversations with one engine, whose messages `seed` draws."""
    draw = random.Random(seed)  # noqa: S311 - a workload, not a secret
    found: Turns = {}

    def message(length: int = MESSAGE_TOKENS) -> list[int]:
        return [BEGINS_MESSAGE, *(draw.randrange(3, vocab_size) for _ in range(length - 1))]

    def conversation() -> list[int]:
        lengths = [MESSAGE_TOKENS] * (num_tokens // MESSAGE_TOKENS) + [num_tokens % MESSAGE_TOKENS]
        return [token for length in lengths if length for token in message(length)]

    def answer(prompt: list[int], name: str, *, num_new: int = 0) -> list[int]:
        """Return the answer to a prompt, and note what its first token took under `name`."""
        first, whole = (
            SamplingParams(temperature=0, ignore_eos=True, max_tokens=count) for count in (1, ANSWER_TOKENS)
        )
        completions: list[Any] = []
        seconds = seconds_of(lambda: completions.extend(llm.generate([prompt], first, use_tqdm=False)))
        computed = len(prompt) - completions[0].num_cached_tokens
        found[name] = {"ttft_s": seconds, "computed": computed, "beyond": computed - num_new}
        return list(llm.generate([prompt], whole, use_tqdm=False)[0].token_ids)

    prompt, other = conversation(), conversation()
    said = answer(prompt, "cold", num_new=num_tokens)
    answer(prompt, "regenerated")
    edited = [*prompt[: -prompt[::-1].index(BEGINS_MESSAGE) - 1], *message()]
    answer(edited, "edited", num_new=MESSAGE_TOKENS)
    prompt = [*prompt, *said, *message()]
    said = answer(prompt, "appended", num_new=MESSAGE_TOKENS + 1)  # the last token of an answer is not computed in it
    answer(other, "another", num_new=num_tokens)
    del found["another"]
    answer([*prompt, *said, *message()], "in turns", num_new=MESSAGE_TOKENS + 1)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table and save the result; return 1 if a turn computes more than it should."""
    parser = argument_parser(__doc__, quick="one round of 600 tokens", rounds=3, shape="qwen3.5-80m-8k")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--num-tokens", type=int, default=15_000, help="of the first prompt")
    args = parser.parse_args(arguments)
    if args.quick:
        args.num_tokens, args.rounds = 600, 1
    options: dict[str, Any] = {"max_batch_size": 4, "max_seq_len": args.num_tokens + 1_000, "device": args.device}
    vocab_size = SHAPES[args.shape]["vocab_size"]
    with tempfile.TemporaryDirectory() as folder:
        write_config(args.shape, Path(folder))
        write_tokenizer(Path(folder), vocab_size=vocab_size, max_length=options["max_seq_len"])
        llm = LLM(folder, load_format="dummy", **options, **NO_DRAFTS)
    runs = [measure(llm, num_tokens=args.num_tokens, vocab_size=vocab_size, seed=seed) for seed in range(args.rounds)]
    found = {name: medians([run[name] for run in runs]) for name in runs[0]}
    cold_s = found["cold"]["ttft_s"]
    rows = [
        [name, f"{each['computed']:.0f}", f"{1e3 * each['ttft_s']:.1f}", f"{100 * each['ttft_s'] / cold_s:.1f}"]
        for name, each in found.items()
    ]
    head = [f"{args.shape}, {args.num_tokens} tokens", "computed", "first token, ms", "of cold, %"]
    print(f"\n{table(head, rows)}")
    save(f"turns-{args.shape}", {"shape": args.shape, "num_tokens": args.num_tokens, "runs": runs}, args)
    most = max(each["beyond"] for run in runs for each in run.values())
    what = "tokens that a turn computes beyond its new message"
    return judge([Limit(what=what, value=most, most=llm.info.block_size)])
