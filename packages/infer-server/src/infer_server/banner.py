"""The banner at startup: what was loaded, where the server listens, a first request to try."""

import json
import shlex

from infer_engine.protocol import EngineInfo
from infer_server.connections.listener import Address
from infer_server.settings import ServerSettings


def banner(info: EngineInfo, *, address: Address, settings: ServerSettings) -> str:
    """Return the lines to print when the server listens at `address`."""
    tokens = info.num_kv_blocks * info.block_size
    name = ", ".join(settings.served_models) or info.model
    path, fields = "/v1/completions", dict[str, object](prompt="To be, or not to be, ")
    if info.has_chat_template:
        path, fields = "/v1/chat/completions", {"messages": [{"role": "user", "content": "Who are you?"}]}
    body = json.dumps(fields | {"max_tokens": 64, "stream": True})
    replicas = f" in {info.num_replicas} replicas" if info.num_replicas > 1 else ""
    ranks = f" over {info.num_ranks} ranks" if info.num_ranks > 1 else ""
    base = f"{address.curl.split()[-1]}{settings.root}"  # of a Unix socket, too, which has no URL of its own
    options = "-H 'Content-Type: application/json'"
    if settings.api_key:
        options += ' -H "Authorization: Bearer $INFER_API_KEY"'
    return "\n".join(
        (
            f"model      {name} ({info.architecture}, {_count(info.num_parameters)} parameters)",
            f"runs in    {info.dtype} on {info.device}, up to {info.max_batch_size} requests at once{replicas}{ranks}",
            f"context    {info.max_seq_len} tokens",
            f"KV cache   {info.num_kv_blocks} blocks of {info.block_size}: {tokens} tokens",
            f"listens on {address.text}",
            f"clients    base URL {base}/v1 for OpenAI's, {base} for Anthropic's",
            "",
            "Try it:",
            f"  curl -N {address.curl}{settings.root}{path} {options} -d {shlex.quote(body)}",
        )
    )


def _count(number: int) -> str:
    for size, unit in ((1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return str(number)
