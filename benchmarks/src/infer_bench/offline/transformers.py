"""`LLM` and `transformers` in one process, turn by turn: the same checkpoint, the same prompts.

`transformers` gets all prompts padded on the left, or one at a time. Every answer is greedy and has the same number of
tokens on both sides. Every turn has prompts of its own, and the side that goes first alternates; the ratio is that of
the medians. Other engines are asked as servers: `infer-bench peers`.

    uv run infer-bench transformers
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from infer_bench.agreement import TOLERANCES, JudgedAnswer, TokenAgreement, compare_tokens
from infer_bench.checkpoints import write_checkpoint
from infer_bench.client.workloads import make_workload
from infer_bench.results import Columns, argument_parser, columns_table, in_turns, paragraph, save, sections
from infer_bench.shapes import NO_DRAFTS
from infer_engine import LLM, SamplingParams

Prompts = list[list[int]]
Answer = Callable[[Prompts], list[list[int]]]
"""Answers prompts, all at once."""
PARTS = {"16 at once": (16, 16), "4 one by one": (4, 1)}
"""How many prompts, and how many of them at a time."""
COLUMNS: Columns = {
    "prompts": "{part}",
    "infer, output tokens/s": "{ours:.1f}",
    "transformers, output tokens/s": "{theirs:.1f}",
    "ratio": "{ratio:.2f}",
    "slowest - fastest round": "{slowest:.2f} - {fastest:.2f}",
}


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
        """Answer in one padded batch, with each token's margin: how many standard deviations it is above the next."""
        found = self._generate(prompts, output_logits=True)
        logits = torch.stack(found.logits, dim=1).float()
        best = logits.topk(2).values / logits.std(dim=-1, keepdim=True)
        margins = (best[..., 0] - best[..., 1]).tolist()
        answers = found.sequences[:, -self._num_new :].tolist()
        return [JudgedAnswer(token_ids=answer, margins=row) for answer, row in zip(answers, margins, strict=True)]

    def _generate(self, prompts: Prompts, **options: Any) -> Any:
        longest = max(map(len, prompts))
        ids, mask = torch.zeros(2, len(prompts), longest, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        options |= {"attention_mask": mask, "max_new_tokens": self._num_new, "do_sample": False}
        with torch.inference_mode():
            return self._model.generate(ids, return_dict_in_generate=True, **options)


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

    def draw(count: int, number: int) -> Prompts:
        workload = make_workload(
            "mixed", scale=scale, contents=number, vocab_size=llm.info.vocab_size, num_requests=count
        )
        return [request.prompt for request in workload.requests]

    sides: dict[str, Answer] = {"infer": answer, "transformers": peer.answer}
    rates = {
        part: alternate(sides, partial(draw, count), at_a_time=at_a_time, num_new=num_new, rounds=rounds)
        for part, (count, at_a_time) in PARTS.items()
    }
    agreement = compare_tokens(answer(draw(16, 0)), peer.judge(draw(16, 0)), tolerance=TOLERANCES[peer.dtype])
    result = {"scale": scale, "answer_tokens": num_new, "transformers": version("transformers")}
    result |= {"tokens_per_s": rates, "agreement": agreement._asdict()}
    print(f"\n{args.shape}, random weights; 32-1024 prompt tokens times {scale:g}, {num_new} new ones.\n")
    print(compared_table(result))
    save(f"compare-transformers-{args.shape}", result, args)


def alternate(
    sides: Mapping[str, Answer], draw: Callable[[int], Prompts], *, at_a_time: int, num_new: int, rounds: int
) -> dict[str, list[float]]:
    """Let all sides answer each round's prompts in turns; return tokens per second.

    Raises:
        RuntimeError: an answer has another length than `num_new`.
    """

    def rate(side: str, number: int) -> float:
        prompts, answers = draw(number), list[list[int]]()
        began_s = time.perf_counter()
        for start in range(0, len(prompts), at_a_time):
            answers += sides[side](prompts[start : start + at_a_time])
        took_s = time.perf_counter() - began_s
        if any(len(answer) != num_new for answer in answers):
            raise RuntimeError(f"`{side}` gave {[len(answer) for answer in answers]} tokens of {num_new} each")
        return num_new * len(prompts) / took_s

    return in_turns({side: partial(rate, side) for side in sides}, rounds=rounds)


def compared_table(result: Mapping[str, Any]) -> str:
    """Return both sides' rates, and how their tokens agree."""
    rows = [_compared(part, **rates) for part, rates in result["tokens_per_s"].items()]
    return sections(
        columns_table(COLUMNS, rows),
        paragraph(
            "Greedy answers of both are compared up to their first difference, as they continue other texts after it. "
            "A difference counts where the best candidate's margin, by the peer's logits, exceeds what rounding "
            "explains: 0.1 standard deviations of the logits in bf16, 0.001 in fp32. "
            f"{TokenAgreement(**result['agreement'])}"
        ),
    )


def _compared(part: str, *, infer: list[float], transformers: list[float]) -> dict[str, Any]:
    ratios = [own / other for own, other in zip(infer, transformers, strict=True)]
    ours, theirs = statistics.median(infer), statistics.median(transformers)
    fields = {"part": part, "ours": ours, "theirs": theirs, "ratio": ours / theirs}
    return fields | {"slowest": min(ratios), "fastest": max(ratios)}
