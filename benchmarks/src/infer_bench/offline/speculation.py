"""The gain of speculative decoding: the same requests with drafts and without, in turns, by one process.

    copied      a list that the prompt holds twice is written again
    replayed    a session of an agent with a tool, turn by turn, which was answered before
    predicted   a text that the request predicts, as OpenAI's `prediction`
    json        records by a schema whose keys are long
    free        a story, which repeats little
    together    16 stories at once, whose steps get no drafts

Each round has a salt of its own, so that nothing but `replayed` finds an earlier answer. The medians of tokens a second
are compared. Tokens must be the same; where drafts gain nothing the loss is at most two hundredths; else the exit code
is 1.

    uv run infer-bench speculation
    uv run infer-bench speculation --model SmolLM2-135M-Instruct --num-tokens 8 --temperature 0.7
    uv run infer-bench speculation --model FOLDER --method mtp     one with a layer that drafts, as Qwen 3.5 has
"""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, get_args

import msgspec

from infer_bench.limits import Limit, judge
from infer_bench.results import Columns, argument_parser, columns_table, in_turns, save, seconds_of
from infer_engine import LLM, SamplingParams
from infer_engine.protocol import EngineStats, StructuredOutputs, Tool
from infer_engine.protocol.config.speculation import SpeculationMethod
from infer_engine.speculation.suffix import SuffixProposer

MOST_US = 20
"""Most microseconds that drafts of a step may take."""
LEAST = 0.98
"""Least ratio where drafts are rejected, or none are made."""

Message = dict[str, Any]
Answers = list[tuple[int, ...]]
Run = Callable[[LLM, SamplingParams, str], Answers]
"""Answers a workload under a salt; returns the tokens of each answer."""

_THINGS = "\n".join(f"{i}. Item number {i} costs {7 * i} euros and is on shelf {i % 5}." for i in range(1, 15))
_LIST_AGAIN = f"{_THINGS}\n\nThe same list again:\n{_THINGS}\n\nThe same list again:\n1. Item"
_STORIES: list[list[Message]] = [
    [{"role": "user", "content": f"Write a story about the number {number} and a {thing}."}]
    for number in range(4)
    for thing in ("fox", "ship", "clock", "garden")
]
_STORY = "Once upon a time there was a fox who"
_TASKS = ("List the files.", "Open the second one.", "What does it say about costs?", "Write a summary of it.")
_TOOL = Tool(
    name="open_file",
    description="Open a file by its name.",
    parameters={"type": "object", "properties": {"file_name": {"type": "string"}}, "required": ["file_name"]},
)
_FIELDS = {
    "customer_identification_number": {"type": "integer", "minimum": 0, "maximum": 9_999},
    "preferred_delivery_address": {"type": "string", "maxLength": 24},
    "subscription_renewal_is_automatic": {"type": "boolean"},
    "last_successful_payment_amount": {"type": "integer", "minimum": 0, "maximum": 9_999},
}
_RECORD = {"type": "object", "properties": _FIELDS, "required": [*_FIELDS], "additionalProperties": False}
_SCHEMA = json.dumps({"type": "array", "items": _RECORD, "minItems": 3, "maxItems": 5})
_ASK_FOR_RECORDS: list[Message] = [{"role": "user", "content": "Invent three customers, as JSON records."}]


def chat(conversations: Sequence[list[Message]], **more: Any) -> Run:
    """Return what answers conversations at once."""

    def run(llm: LLM, params: SamplingParams, salt: str) -> Answers:
        done = llm.chat(conversations, params, cache_salt=salt, use_tqdm=False, **more)
        return [tuple(each.token_ids) for each in done]

    return run


def copy(llm: LLM, params: SamplingParams, salt: str) -> Answers:
    """Go on with a text that is a copy of what came before."""
    return [tuple(each.token_ids) for each in llm.generate(_LIST_AGAIN, params, cache_salt=salt, use_tqdm=False)]


def replay(llm: LLM, params: SamplingParams, _: str) -> Answers:
    """Answer a session turn by turn, always under the same salt."""
    messages: list[Message] = []
    answers = []
    for task in _TASKS:
        messages.append({"role": "user", "content": task})
        [done] = llm.chat(messages, params, tools=[_TOOL], cache_salt="session", use_tqdm=False)
        messages.append({"role": "assistant", "content": done.text})
        answers.append(tuple(done.token_ids))
    return answers


def predicted(llm: LLM, params: SamplingParams, salt: str) -> Answers:
    """Answer what is predicted: the whole answer, which is known once it was given."""
    key = params.temperature
    [done] = llm.generate(_STORY, params, prediction=_PREDICTIONS.get(key), cache_salt=salt, use_tqdm=False)
    _PREDICTIONS[key] = done.text
    return [tuple(done.token_ids)]


_PREDICTIONS: dict[float, str] = {}


def write_json(llm: LLM, params: SamplingParams, salt: str) -> Answers:
    """Write records by a schema."""
    return chat([_ASK_FOR_RECORDS])(
        llm, msgspec.structs.replace(params, structured_outputs=StructuredOutputs(json=_SCHEMA)), salt
    )


WORKLOADS: Mapping[str, Run] = {
    "copied": copy,
    "replayed": replay,
    "predicted": predicted,
    "json": write_json,
    "free": chat(_STORIES[:1]),
    "together": chat(_STORIES),
}


def propose_us(answer: Sequence[int]) -> float:
    """Return the median of the microseconds in which the tokens of an answer are drafted, one after another."""
    proposer, known, times = SuffixProposer(), list[int](), []
    for token_id in answer:
        known.append(token_id)
        times.append(1e6 * seconds_of(lambda: proposer.propose(known, 16)))
    return statistics.median(times)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table and save the result; return 1 if a limit is broken."""
    parser = argument_parser(__doc__, quick="one round of 40 tokens", rounds=5)
    parser.add_argument("--model", default=None, help="left out: the default model")
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--method", default="suffix", choices=get_args(SpeculationMethod))
    parser.add_argument("--draft-model", help="with `draft_model`: the model that drafts")
    parser.add_argument("--num-tokens", type=int, default=None, help="most draft tokens of a request in a step")
    parser.add_argument("--max-tokens", type=int, default=300, help="of an answer")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS)
    args = parser.parse_args(arguments)
    if args.quick:
        args.max_tokens, args.rounds = 40, 1
    config = {"method": args.method, "model": args.draft_model, "num_speculative_tokens": args.num_tokens}
    config = {name: value for name, value in config.items() if value is not None}
    engines = {
        name: LLM(args.model, load_format=args.load_format, kv_cache_memory="512MiB", speculative_config=drafts)
        for name, drafts in {"without": "none", "with": json.dumps(config)}.items()
    }
    params = SamplingParams(temperature=args.temperature, seed=1, max_tokens=args.max_tokens, ignore_eos=True)
    found = {name: measure(name, engines, params, rounds=args.rounds) for name in args.workloads}
    columns: Columns = {
        "tokens/s": lambda row: row[0],
        **{
            kind: lambda row, kind=kind: f"{statistics.median(row[1]['rates'][kind]):.1f}"  # type: ignore[misc]  # a default
            for kind in engines
        },
        "ratio": lambda row: f"{row[1]['ratio']:.2f}",
        "drafted": lambda row: row[1]["num_draft_tokens"],
        "accepted": lambda row: f"{row[1]['accepted']:.2f}",
    }
    print(f"\n{columns_table(columns, found.items())}")
    save("speculation", {"model": engines["with"].info.model, "config": config, **found}, args)
    last = WORKLOADS[args.workloads[-1]](engines["with"], params, "drafts")
    drafted_us = propose_us([token_id for answer in last for token_id in answer])
    print(f"\nThe drafts of a step take {drafted_us:.1f} us.")
    num_different = sum(each["num_different"] for each in found.values())
    limits = [Limit(what="rounds whose tokens differ", value=num_different, most=0)]
    if not args.quick:
        limits += [
            Limit(what=f"loss of {name}, hundredths", value=100 * (1 - found[name]["ratio"]), most=100 * (1 - LEAST))
            for name in {"free", "together"} & found.keys()
        ]
        limits.append(Limit(what="drafts of a step, us", value=drafted_us, most=MOST_US))
    return judge(limits)


def measure(name: str, engines: Mapping[str, LLM], params: SamplingParams, *, rounds: int) -> dict[str, Any]:
    """Return the tokens a second of a workload with and without drafts, and how many were made and accepted."""
    answers: dict[str, list[Answers]] = {kind: [] for kind in engines}
    begins: list[EngineStats] = []

    def rate(kind: str, number: int) -> float:
        if kind == "with" and number == 0:
            begins.append(engines[kind].stats)
        took_s = seconds_of(lambda: answers[kind].append(WORKLOADS[name](engines[kind], params, f"{name} {number}")))
        return sum(map(len, answers[kind][-1])) / took_s

    rates = in_turns({kind: partial(rate, kind) for kind in engines}, rounds=rounds)
    before, after = begins[0], engines["with"].stats
    num_drafts = after.num_draft_tokens - before.num_draft_tokens
    return {
        "rates": rates,
        "ratio": statistics.median(rates["with"]) / statistics.median(rates["without"]),
        "num_draft_tokens": num_drafts,
        "accepted": (after.num_accepted_tokens - before.num_accepted_tokens) / max(1, num_drafts),
        "num_different": sum(own != other for own, other in zip(*answers.values(), strict=True)),
    }
