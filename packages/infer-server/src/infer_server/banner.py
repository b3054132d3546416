"""What a person reads at the start: what was loaded, where it listens, a first request to try. Words only."""

import json
import shlex

from infer_engine.protocol import EngineInfo


def banner(info: EngineInfo, *, url: str, served_model: str) -> str:
    """Return the lines to print once the server listens at `url`."""
    tokens = info.num_kv_blocks * info.block_size
    body = json.dumps({"prompt": "To be, or not to be, ", "max_tokens": 64, "stream": True})
    return "\n".join(
        (
            f"model      {served_model} ({info.architecture}, {_count(info.num_parameters)} parameters)",
            f"runs in    {info.dtype} on {info.device}, up to {info.max_batch_size} requests at once",
            f"context    {info.max_seq_len} tokens",
            f"KV cache   {info.num_kv_blocks} blocks of {info.block_size}: {tokens} tokens",
            f"listens on {url}",
            "",
            "Try it:",
            f"  curl -N {url}/v1/completions -H 'Content-Type: application/json' -d {shlex.quote(body)}",
        )
    )


def _count(number: int) -> str:
    for size, unit in ((1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return str(number)
