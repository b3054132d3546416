"""Prints the default model's greedy answers, to be compared between kinds of CPU."""

from infer_engine import LLM, EngineConfig, SamplingParams

QUESTIONS = ("What is the capital of France?", "Write one sentence about the sea.", "Count from one to five.")


def main() -> None:
    """Print an answer a line."""
    llm = LLM(config=EngineConfig(max_batch_size=4, max_seq_len=256))
    for question in QUESTIONS:
        params = SamplingParams(max_tokens=12, temperature=0)
        [answer] = llm.chat([{"role": "user", "content": question}], params, use_tqdm=False)
        print(f"answer {answer.text!r} to {question!r}", flush=True)


if __name__ == "__main__":
    main()
