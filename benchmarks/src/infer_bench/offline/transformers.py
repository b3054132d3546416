"""`LLM` and `transformers` in one process, turn by turn: the same checkpoint, the same prompts.

`transformers` gets all prompts padded on the left, or one at a time. Every answer is greedy and has the same number of
tokens on both sides. Every turn has prompts of its own, and the side that goes first alternates; the ratio is that of
the medians. Other engines are asked as servers: `infer-bench peers`.

    uv run infer-bench transformers
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from infer_bench.agreement import TOLERANCES, JudgedAnswer, compare_tokens
from infer_bench.checkpoints import write_checkpoint
from infer_bench.client.workloads import make_workload
from infer_bench.results import argument_parser, save, table
from infer_bench.shapes import NO_DRAFTS
from infer_engine import LLM, SamplingParams

Prompts = list[list[int]]
Answer = Callable[[Prompts], list[list[int]]]
"""Answers prompts, all at once."""
PARTS = {"16 at once": (16, 16), "4 one by one": (4, 1)}
"""How many prompts, and how many of them at a time."""
WARM_UP_CONTENTS = 1_000_000


class Transformers:
    """`transformers`: `generate`, padded on the left where prompts are of several lengths."""

    def __init__(self, folder: Path, *, num_new: int) -> None:
        """Load the checkpoint in `folder`, in its own dtype, to answer with `num_new` tokens."""
        from transformers import AutoModelForCausalLM  # noqa: PLC0415 - it takes seconds

        load: Callable[..., Any] = AutoModelForCausalLM.from_pretrained
        self._model = load(folder, dtype="auto")
        self._model.generation_config.eos_token_id = None  # answers run to their full length
        self._model.generation_config.pad_token_id = 0
        self._num_new = num_new
        self.dtype: torch.dtype = self._model.dtype

    def answer(self, prompts: Prompts) -> list[list[int]]:
        """Answer in one padded batch."""
        answers: list[list[int]] = self._generate(prompts).sequences[:, -self._num_new :].tolist()
        return answers

    def judge(self, prompts: Prompts) -> list[JudgedAnswer]:
        """Answer in one padded batch, with the margin of every token."""
        found = self._generate(prompts, output_logits=True)
        margins = torch.stack([_margins(logits.float()) for logits in found.logits], dim=1).tolist()
        answers = found.sequences[:, -self._num_new :].tolist()
        return [JudgedAnswer(token_ids=answer, margins=row) for answer, row in zip(answers, margins, strict=True)]

    def _generate(self, prompts: Prompts, **options: Any) -> Any:
        longest = max(map(len, prompts))
        ids, mask = torch.zeros(2, len(prompts), longest, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        with torch.inference_mode():
            return self._model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=self._num_new,
                do_sample=False,
                return_dict_in_generate=True,
                **options,
            )


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare, print a table and save the result."""
    parser = argument_parser(__doc__, quick="one turn at a quarter of the lengths", rounds=3, shape="smollm-135m")
    parser.add_argument("--scale", type=float, default=0.25, help="factor on the prompts' 32-1024 tokens")
    args = parser.parse_args(arguments)
    rounds, scale, num_new = (1, args.scale / 4, 8) if args.quick else (args.rounds, args.scale, 32)
    with tempfile.TemporaryDirectory() as made:
        folder = write_checkpoint(args.shape, Path(made))
        llm = LLM(str(folder), device="cpu", max_batch_size=16, use_prefix_caching=False, **NO_DRAFTS)
        peer = Transformers(folder, num_new=num_new)
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=num_new)

    def answer(prompts: Prompts) -> list[list[int]]:
        return [completion.token_ids for completion in llm.generate(prompts, params, use_tqdm=False)]

    def draw(count: int, contents: int) -> Prompts:
        workload = make_workload(
            "mixed", scale=scale, contents=contents, vocab_size=llm.info.vocab_size, num_requests=count
        )
        return [request.prompt for request in workload.requests]

    sides: dict[str, Answer] = {"infer": answer, "transformers": peer.answer}
    rates, rows = {}, []
    for part, (count, at_a_time) in PARTS.items():
        turns = [draw(count, contents) for contents in (WARM_UP_CONTENTS, *range(rounds))]
        rates[part] = alternate(sides, turns, at_a_time=at_a_time, num_new=num_new)
        ours, theirs = (statistics.median(found) for found in rates[part].values())
        rows.append([part, f"{ours:.1f}", f"{theirs:.1f}", f"{ours / theirs:.2f}"])
    prompts = draw(16, 0)
    agreement = compare_tokens(answer(prompts), peer.judge(prompts), tolerance=TOLERANCES[peer.dtype])
    print(f"\n{args.shape}, random weights; 32-1024 prompt tokens times {scale:g}, {num_new} new ones.\n")
    print(table(["prompts", *(f"{side}, output tokens/s" for side in sides), "ratio"], rows))
    print(f"\n{agreement}")
    if not args.quick:
        result = {"scale": scale, "answer_tokens": num_new, "transformers": version("transformers")}
        found = {"tokens_per_s": rates, "agreement": agreement.as_json()}
        save(f"compare-transformers-{args.shape}", result | found, args.out)


def alternate(
    sides: dict[str, Answer], turns: Sequence[Prompts], *, at_a_time: int, num_new: int
) -> dict[str, list[float]]:
    """Let all sides answer each turn's prompts; return tokens per second of each turn but the first, which warms up.

    Raises:
        RuntimeError: an answer has another length than `num_new`.
    """
    rates: dict[str, list[float]] = {side: [] for side in sides}
    for number, prompts in enumerate(turns):
        print(f"turn {number} of {len(turns) - 1}", file=sys.stderr)
        for side in sides if number % 2 else reversed(sides):
            began_s = time.perf_counter()
            answers: list[list[int]] = []
            for start in range(0, len(prompts), at_a_time):
                answers += sides[side](prompts[start : start + at_a_time])
            took_s = time.perf_counter() - began_s
            if any(len(answer) != num_new for answer in answers):
                raise RuntimeError(f"`{side}` gave {[len(answer) for answer in answers]} tokens of {num_new} each")
            if number:
                rates[side].append(num_new * len(prompts) / took_s)
    return rates


def _margins(logits: torch.Tensor) -> torch.Tensor:
    """Return [sequences]: the best logit above the next one, in standard deviations of all."""
    best = logits.topk(2, dim=-1).values
    return (best[:, 0] - best[:, 1]) / logits.std(dim=-1)
