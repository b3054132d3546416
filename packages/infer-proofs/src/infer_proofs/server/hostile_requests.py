"""Requests that no sensible client sends: bodies that are no JSON, odd values of fields, pieces. Asks no server."""

import json
from typing import Any

LIMIT = 10_000_000
"""Bytes of the largest body that a server takes by default."""
COMPLETIONS, CHATS, TOKENIZE, DETOKENIZE = "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"
SOUND: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "x", "max_tokens": 2},
    CHATS: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
    TOKENIZE: {"prompt": "x"},
    DETOKENIZE: {"tokens": [5]},
}
"""The smallest sound body of each path."""

NOT_JSON = {
    "empty": b"",
    "no object": b"null",
    "a list": b"[]",
    "a number": b"1",
    "cut short": b'{"prompt": "x"',
    "too much": b'{"prompt": "x"}}',
    "deep lists": b"[" * 100_000,
    "deep lists that end": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"prompt": ' * 100_000 + b"1" + b"}" * 100_000,
    "not UTF-8": b'{"prompt": "\xff\xfe"}',
    "surrogate in UTF-8": b'{"prompt": "\xed\xa0\x80"}',
    "byte order mark": b'\xef\xbb\xbf{"prompt": "x"}',
    "UTF-16": '{"prompt": "x"}'.encode("utf-16"),
    "UTF-16 without mark": '{"prompt": "x"}'.encode("utf-16-le"),
    "UTF-32": '{"prompt": "x"}'.encode("utf-32"),
    "NUL": b'{"prompt": "x"}\0',
    "garbage": bytes(range(256)) * 39_000,
    "just over the limit": b" " * (LIMIT - 14) + b'{"prompt": "x"}',
    "twice the limit": b"x" * (2 * LIMIT),
}
"""By name, with `limit` in the names of those that are too large."""

DEEP = "[" * 100_000 + "]" * 100_000
SURROGATES = [
    '"\\ud800"',
    '"\\udfff x"',
    '["\\ud83d"]',
    '{"\\udc00": 1}',
    '[{"role": "\\ud800", "content": "\\ud800"}]',
]
NUMBERS = ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e-999", "-0", "1.5", "-1", "0", "9" * 5000, "9" * 300]
NUMBERS += map(str, [2**31, 2**32, 2**63, 2**64, -(2**31), -(2**63), -(2**64), 10**30, -(10**30)])
IDS = ["[-1]", "[320]", "[2147483648]", "[9223372036854775808]", f"[{10**30}]", "[[-1], [5]]", "[5, -1]", "[1.0]"]
TEXTS = ['""', '"\\u0000"', '["", "x"]', "[]", "[[]]", '["x", 5]', '["x", [5]]', '"\\u0000\\u0000"', '"<eos>"', "[0]"]
OTHERS = ["null", "true", "{}", '{"1": 1e999}', '{"-1": 1}', '{"320": 1}', f'{{"{10**30}": 1}}', f'"{"9" * 5000}"']
ODD = [DEEP, *SURROGATES, *NUMBERS, *IDS, *TEXTS, *OTHERS]
"""Values of fields, as JSON."""


def with_field(path: str, name: str, raw: str) -> str:
    """Return the sound body of `path` with one more field, whose value is `raw` JSON."""
    rest = {key: value for key, value in SOUND[path].items() if key != name}
    return json.dumps(rest)[:-1] + (", " if rest else "") + f'"{name}": {raw}}}'


def post(body: bytes, *headers: bytes) -> bytes:
    """Return a whole request of a completion, as it is on the wire."""
    lines = [b"POST /v1/completions HTTP/1.1", b"Host: x", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join([*lines, b"", b""]) + body


def post_in_chunks(body: bytes) -> bytes:
    """Return the same request, in chunks of a byte."""
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    return b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks


SHORT = b'{"prompt": "x", "max_tokens": 1}'
UNFINISHED = (b"GET / HTTP/1.1\r\nHost: x\r\nX-Drip: ", post(SHORT)[:-5], b"", b"P", b"GET /health HTTP/1.1\r\n")
"""Beginnings of requests, for sockets that drip."""


def requests_to_cut(num_choices: int) -> list[bytes]:
    """Return requests to be cut at any point: long ones, of `num_choices` answers, and one that is refused."""
    endless = json.dumps({"prompt": "x", "max_tokens": 500, "ignore_eos": True, "n": num_choices}).encode()
    streamed = post(endless, b"Accept: text/event-stream")
    return [streamed, post(endless), post_in_chunks(endless), post(b"[" * 100_000)]


def places_of_cuts(request: bytes) -> tuple[int, ...]:
    """Return where to cut a request: in its first line, its head, its middle, before and behind its end."""
    return 1, 30, len(request) // 2, len(request) - 1, len(request)
