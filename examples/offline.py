"""Completes several prompts together: `uv run python examples/offline.py`."""

from infer_engine import LLM, SamplingParams

prompts = ["ROMEO:\n", "JULIET:\n", "First Citizen:\n"]
params = SamplingParams(max_tokens=30, temperature=0.8, seed=7)

llm = LLM("infer-demo")  # or a folder, a GGUF file, or a Hub id
for completion in llm.generate(prompts, params):
    print(f"{completion.prompt}{completion.text}")
    print(f"--- {len(completion.token_ids)} tokens, ended by {completion.finish_reason}")
