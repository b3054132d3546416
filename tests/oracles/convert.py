"""Runs llama.cpp's converter: a program that takes its arguments, a JSON list a line, and answers a line each.

    python convert.py FOLDER        the folder of llama.cpp's source

Tokenizers are written as byte-level ones that split as GPT-2: the converter knows published ones by their hashes alone.
An answer is a JSON string, "" or what went wrong.
"""

import json
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

folder = Path(sys.argv[1])
sys.path[:0] = [str(folder), str(folder / "gguf-py")]  # before what is installed

from conversion.base import TextModel  # type: ignore[import-not-found]  # noqa: E402 - of llama.cpp's source

write = TextModel.write


def write_with_byte_level(model: Any) -> None:
    """Write a model with a byte-level tokenizer."""
    model.set_vocab = model._set_vocab_gpt2  # noqa: SLF001 - the converter has no other way
    write(model)


TextModel.write = write_with_byte_level
TextModel.get_vocab_base_pre = lambda *_: "gpt-2"
for line in sys.stdin:
    sys.argv = [str(folder / "convert_hf_to_gguf.py"), *json.loads(line)]
    fault = ""
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the answer
        fault = f"{type(error).__name__}: {error} {traceback.extract_tb(error.__traceback__)[-1]}"
    print("answer:", json.dumps(fault), flush=True)
