"""Generates JSON of a schema, one of some choices, and a text that matches: `uv run python examples/structured.py`.

Tokens that cannot lead there are never chosen, so that even the demo model's answers can be parsed.
"""

import json

from infer_engine import LLM, SamplingParams, StructuredOutputs

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Lear", "Duncan", "Macbeth"]},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
        "daughters": {"type": "array", "items": {"enum": ["Goneril", "Regan", "Cordelia"]}, "maxItems": 3},
    },
    "required": ["name", "age", "daughters"],
    "additionalProperties": False,
}

llm = LLM("infer-demo")


def generate(prompt: str, wanted: StructuredOutputs) -> str:
    params = SamplingParams(max_tokens=100, seed=2, structured_outputs=wanted)
    return llm.generate(prompt, params, use_tqdm=False)[0].text


king = json.loads(generate("A king: ", StructuredOutputs(json=SCHEMA)))
print("JSON:", king["name"], king["age"], king["daughters"])
print("choice:", generate("HAMLET:\n", StructuredOutputs(choice=("To be", "Not to be"))))
print("regex:", generate("Enter at ", StructuredOutputs(regex=r"([01][0-9]|2[0-3]):[0-5][0-9]")))
