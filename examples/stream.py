"""Prints a text while it is generated, and ends another one early: `uv run python examples/stream.py`."""

from infer_engine import LLM, SamplingParams

llm = LLM("infer-demo")

for output in llm.stream("ROMEO:\n", SamplingParams(max_tokens=40, seed=7)):
    print(output.text, end="", flush=True)  # the texts join up to the whole answer
print(f"\n--- ended by {output.finish_reason}")

unfinished = llm.stream("JULIET:\n", SamplingParams(max_tokens=500, ignore_eos=True, seed=7))
for output in unfinished:
    print(output.text, end="", flush=True)
    if "\n" in output.text:
        break
unfinished.close()  # aborts the request and frees its memory
print(f"--- {llm.stats.num_running} requests run")
