"""Holds a conversation of several turns, each answer sent back with the next: `uv run python examples/chat.py`.

The demo model is Romeo, the user is Juliet, and a system message is the Chorus.
"""

from infer_engine import LLM, ChatMessage, SamplingParams

llm = LLM("infer-demo")
params = SamplingParams(max_tokens=60, temperature=0.7, seed=3)
messages = [ChatMessage(role="system", content="Verona, at night. A garden.")]

for question in ("Who is there?", "What is thy name?", "Wilt thou be gone?"):
    messages.append(ChatMessage(role="user", content=question))
    [answer] = llm.chat(messages, params, use_tqdm=False)
    messages.append(ChatMessage(role="assistant", content=answer.text))
    print(f"JULIET: {question}\nROMEO: {answer.text.strip()}")
    print(f"--- {answer.num_cached_tokens} of {answer.num_prompt_tokens} tokens of the prompt were cached\n")
