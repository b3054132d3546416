"""Asks a running `infer-server` with OpenAI's client: `uv run --with openai python examples/openai_client.py`.

Another address than the server's default may be given as the argument.
"""

import sys

from openai import OpenAI

address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
client = OpenAI(base_url=f"{address}/v1", api_key="none")  # any key, where the server has none
model = client.models.list().data[0].id
print("model:", model)

for chunk in client.completions.create(model=model, prompt="ROMEO:\n", max_tokens=30, seed=7, stream=True):
    print(chunk.choices[0].text, end="", flush=True)
print()

answer = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Who is there?"}],
    max_completion_tokens=60,
    seed=7,
    extra_body={"top_k": 20},  # fields that OpenAI's API does not have
)
print("answer:", answer.choices[0].message.content)
if answer.usage is not None:
    print("tokens:", answer.usage.prompt_tokens, "+", answer.usage.completion_tokens)
