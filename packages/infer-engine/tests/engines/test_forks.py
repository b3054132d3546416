"""A forked child of a process that has computed: threads are not in it, and whoever waits for them waits for ever.

Sources: pytorch/pytorch#17199, pytorch/pytorch#41197.
"""

import os
import subprocess
import sys

import pytest

FORK = """
import os, sys, torch
from infer_engine import LLM, SamplingParams
from infer_engine.protocol import EngineUnavailableError
torch.set_num_threads(int(sys.argv[1]))
llm = LLM("infer-demo", device="cpu", kv_cache_memory="16MiB")
params = SamplingParams(max_tokens=2, seed=1, ignore_eos=True)
[mine] = llm.generate("A", params, use_tqdm=False)
stream = llm.stream("A", params)
child = os.fork()
if child == 0:
    for use in (lambda: llm.generate("A", params, use_tqdm=False)[0].text, lambda: next(stream).text):
        try:
            print("computed", use() in (mine.text, mine.text[:1]), flush=True)
        except EngineUnavailableError as error:
            print("refused", error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print("parent", llm.generate("A", params, use_tqdm=False)[0].text == mine.text)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_forked_child_is_told_instead_of_waiting_for_threads(num_threads: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(num_threads)],
        env=os.environ | {"OMP_NUM_THREADS": str(num_threads)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    *of_child, of_parent = done.stdout.splitlines()
    if num_threads == 1:
        assert of_child == ["computed True"] * 2
    else:
        assert all(line.startswith("refused This `LLM` was loaded by process ") for line in of_child)
        assert all("start processes by `spawn`" in line for line in of_child)
    assert len(of_child) == 2
    assert of_parent == "parent True"
