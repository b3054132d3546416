"""The scripted model that the other tests of this folder use gives its script and nothing else."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

from infer_proofs.models import save_scripted

BODY = {"messages": [{"role": "user", "content": "x"}], "temperature": 0, "max_tokens": 20}


def test_the_answer_is_the_script(serve_script: Callable[..., AbstractContextManager[httpx.Client]]) -> None:
    with serve_script(["One, ", "<mark>", " two\n", "é"], added_tokens=["<mark>"]) as client:
        [choice] = client.post("/v1/chat/completions", json=BODY).json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("One, <mark> two\né", "stop")


def test_a_piece_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="twice"):
        save_scripted(tmp_path, ["a", "b", "a"])


def test_the_demo_server_answers(demo: httpx.Client) -> None:
    assert demo.post("/v1/completions", json={"prompt": "ROMEO:", "max_tokens": 2}).status_code == 200
