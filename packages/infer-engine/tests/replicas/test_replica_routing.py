"""Which replica a request goes to, and which processors a replica gets."""

from pathlib import Path
from random import Random

import pytest

from infer_engine.processes.processors import divide_processors
from infer_engine.replicas.prefix_index import BLOCK_TOKENS, PrefixIndex, prefix_keys
from infer_engine.replicas.routing import MAX_EXTRA_LOAD, Router


@pytest.mark.covers("replicas/processors")
@pytest.mark.parametrize(
    ("num_parts", "expected"),
    [
        (1, [[0, 1, 2, 3, 4, 5, 6, 7]]),
        (2, [[0, 1, 4, 5], [2, 3, 6, 7]]),
        (4, [[0, 4], [1, 5], [2, 6], [3, 7]]),
        (3, [[0, 4], [1, 2, 5], [3, 6, 7]]),
        (9, [[0], [4], [1], [5], [2], [6], [3], [7], [0]]),
    ],
)
def test_processors_of_a_node_and_of_a_core_stay_together(
    tmp_path: Path, num_parts: int, expected: list[list[int]]
) -> None:
    for processor in range(8):  # two nodes with two cores each, whose threads are 4 apart
        folder = tmp_path / f"cpu/cpu{processor}"
        (folder / "topology").mkdir(parents=True)
        (folder / "topology/thread_siblings_list").write_text(f"{processor % 4},{processor % 4 + 4}\n")
        (folder / f"node{processor % 4 // 2}").mkdir()
    assert divide_processors(range(8), num_parts, system=tmp_path) == expected


def test_processors_of_a_system_that_says_nothing_are_divided_in_order(tmp_path: Path) -> None:
    assert divide_processors([2, 5, 7, 9], 2, system=tmp_path) == [[2, 5], [7, 9]]
    assert divide_processors([], 2, system=tmp_path) == [[], []]


def routed(router: Router, prompt: list[int], *loads: int, salt: str | None = None) -> int:
    return router.choose(prompt, salt=salt, loads=dict(enumerate(loads)))


@pytest.mark.covers("replicas/prefix-routing")
def test_a_prompt_goes_where_most_of_it_is_known() -> None:
    router = Router(policy="prefix", cache_tokens=10_000)
    one, two = [1] * 64, [2] * 64
    assert routed(router, one, 0, 0, 0) == 0
    assert routed(router, two, 1, 0, 0) == 1
    assert routed(router, [*one, 5], 1, 1, 0) == 0
    assert routed(router, [*two[:32], *one], 1, 1, 0) == 1, "the first 32 tokens count, and not the rest"
    assert routed(router, [*one, 5], 1, 1, 0, salt="other") == 2, "another salt shares nothing"
    assert routed(router, [1] * 31, 1, 1, 0) == 2, "nothing is known of what is shorter than a block"


@pytest.mark.covers("replicas/prefix-routing")
def test_a_prompt_goes_elsewhere_if_its_replica_is_much_busier() -> None:
    router = Router(policy="prefix", cache_tokens=10_000)
    prompt = [1] * 64
    assert routed(router, prompt, 0, 0) == 0
    assert routed(router, prompt, MAX_EXTRA_LOAD, 0) == 0
    assert routed(router, prompt, MAX_EXTRA_LOAD + 1, 0) == 1
    assert routed(router, prompt, 5, 4) == 1, "both know it: the one with less to do"


def test_what_a_replica_has_no_room_for_or_has_lost_is_not_known() -> None:
    router = Router(policy="prefix", cache_tokens=128)
    first = [1] * 64
    assert routed(router, first, 0, 9) == 0
    for i in range(2, 5):
        assert routed(router, [i] * 64, 0, 9) == 0
    assert routed(router, first, 1, 0) == 1, "evicted"
    assert routed(router, [4] * 64, 1, 0) == 0
    router.forget(0)
    assert routed(router, [4] * 64, 1, 0) == 1


@pytest.mark.covers("replicas/routing-policy")
def test_replicas_with_equal_loads_take_turns() -> None:
    router = Router(policy="least_loaded", cache_tokens=0)
    assert [routed(router, [1], 0, 0, 0) for _ in range(5)] == [0, 1, 2, 0, 1]
    assert routed(router, [1], 3, 1, 2) == 1


@pytest.mark.covers("replicas/routing-policy")
def test_routing_at_random_knows_only_who_lives() -> None:
    router = Router(policy="random", cache_tokens=0, draw=Random(1))  # noqa: S311 - no secret
    assert {router.choose([1], salt=None, loads={0: 9, 2: 0}) for _ in range(50)} == {0, 2}


def test_the_shortest_prefix_of_a_prompt_is_forgotten_last() -> None:
    index = PrefixIndex(max_tokens=4 * BLOCK_TOKENS)
    long, short = prefix_keys([1] * 4 * BLOCK_TOKENS, salt=None), prefix_keys([2] * BLOCK_TOKENS, salt=None)
    index.add(long)
    assert index.num_known(long) == 4
    index.add(short)
    assert (index.num_known(long), index.num_known(short)) == (3, 1)


def test_keys_are_those_of_prefixes_and_of_their_salts() -> None:
    one = prefix_keys([*range(2 * BLOCK_TOKENS), 7], salt="s")
    assert len(one) == 2
    assert one == prefix_keys(range(2 * BLOCK_TOKENS), salt="s")
    assert one[0] == prefix_keys([*range(BLOCK_TOKENS), *[9] * BLOCK_TOKENS], salt="s")[0]
    assert not {*one} & {*prefix_keys(range(2 * BLOCK_TOKENS), salt=None)}
    assert one[1] not in prefix_keys([*range(1, BLOCK_TOKENS + 1), *range(BLOCK_TOKENS, 2 * BLOCK_TOKENS)], salt="s")
