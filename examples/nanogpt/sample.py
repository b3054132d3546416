"""Continues a prompt with a trained NanoGPT, through `LLM`.

    uv run python examples/nanogpt/sample.py --model nanogpt --prompt "O Romeo, " --length 200

The model sees no more than its context of 32 characters. What is longer is written in rounds, each of which continues
the end of the text so far.
"""

import argparse
import sys
from pathlib import Path

from infer_engine import LLM, SamplingParams
from infer_models.text import Tokenizer


def main() -> None:
    """Write one continuation or several, each from the prompt on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("nanogpt"), help="folder that `train.py` wrote")
    parser.add_argument("--prompt", default="O Romeo, ")
    parser.add_argument("--length", type=int, default=200, help="characters to write")
    parser.add_argument("--samples", type=int, default=1, help="continuations, all written together")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        check_characters(options.model, options.prompt)
    except ValueError as error:
        sys.exit(str(error))
    llm = LLM(str(options.model))
    texts = continue_text(
        llm,
        [options.prompt] * options.samples,
        length=options.length,
        temperature=options.temperature,
        seed=options.seed,
    )
    print("\n\n---\n\n".join(texts))


def check_characters(model: Path, prompt: str) -> None:
    """See whether the model knows every character of `prompt`.

    Raises:
        ValueError: it does not know some; a tokenizer without a token for them would leave them out.
    """
    tokenizer = Tokenizer.from_folder(model)
    unknown = sorted(character for character in set(prompt) if not tokenizer.encode(character))
    if unknown or not prompt:
        raise ValueError(f"`--prompt` is {prompt!r}; it must be characters of the training text, without {unknown}.")


def continue_text(llm: LLM, prompts: list[str], *, length: int, temperature: float, seed: int) -> list[str]:
    """Return each of `prompts` with `length` characters more; text `i` of round `r` draws with a seed of its own."""
    context = llm.info.max_seq_len
    texts, num_written = prompts, 0
    while num_written < length:
        num_new = min(context // 2, length - num_written)
        tails = [text[num_new - context :] for text in texts]
        params = [
            SamplingParams(max_tokens=num_new, temperature=temperature, seed=seed + num_written * len(texts) + index)
            for index in range(len(texts))
        ]
        completions = llm.generate(tails, params, use_tqdm=False)
        texts = [text + completion.text for text, completion in zip(texts, completions, strict=True)]
        num_written += num_new
    return texts


if __name__ == "__main__":
    main()
