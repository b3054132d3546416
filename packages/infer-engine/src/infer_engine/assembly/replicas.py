"""Starts the replicas of a configuration, each in a process of its own."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import msgspec

from infer_engine.ipc.process_client import ProcessCoreClient
from infer_engine.processes.processors import available_processors, divide_processors
from infer_engine.protocol import EngineConfig, EngineInfo, EngineStats
from infer_engine.replicas.combining import combine_stats
from infer_engine.replicas.replicated_client import ReplicatedCoreClient
from infer_engine.replicas.routing import Router


def start_replicas(config: EngineConfig) -> tuple[ReplicatedCoreClient, EngineInfo, EngineStats]:
    """Load the model `config.data_parallel_size` times; return the client of the cores, and what they are together.

    The first replica decides on the device and on the longest sequence, and the others follow it.

    Raises:
        CheckpointUnusableError: the checkpoint is missing, damaged or of no known kind.
        ValueError: the configuration asks for more than the model, the devices or the memory has.
        EngineStartError: a process ended while it loaded.
    """
    num_replicas = config.data_parallel_size
    processors: list[list[int]] = [[] for _ in range(num_replicas)]
    if not config.device.startswith("cuda"):
        processors = divide_processors(available_processors(), num_replicas)
    first = ProcessCoreClient(config, processors=processors[0])
    info = first.ready.info

    def start(index: int) -> ProcessCoreClient:
        return ProcessCoreClient(config_of_replica(index, config, info), processors=processors[index])

    def restart(index: int) -> tuple[ProcessCoreClient, EngineStats]:
        client = start(index)
        return client, client.ready.stats

    clients = [first]
    try:
        with ThreadPoolExecutor(num_replicas - 1) as pool:
            futures = [pool.submit(start, index) for index in range(1, num_replicas)]
        clients += [future.result() for future in futures if future.exception() is None]
        for future in futures:
            future.result()
    except BaseException:
        for client in clients:
            client.abandon()
        raise
    stats = [client.ready.stats for client in clients]
    router = Router(policy=config.routing_policy, cache_tokens=info.num_kv_blocks * info.block_size)
    replicated = ReplicatedCoreClient(
        clients, stats=stats, router=router, start_core=restart, step_timeout_s=config.step_timeout_s
    )
    combined = msgspec.structs.replace(
        info,
        num_replicas=num_replicas,
        num_kv_blocks=sum(client.ready.info.num_kv_blocks for client in clients),
        max_batch_size=info.max_batch_size * num_replicas,
    )
    return replicated, combined, combine_stats(stats, latest=EngineStats())


def config_of_replica(index: int, config: EngineConfig, first: EngineInfo) -> EngineConfig:
    """Return the configuration of a replica: on the device of its own, with sequences as long as those of the first."""
    config = dataclasses.replace(config, max_seq_len=first.max_seq_len)
    if not first.device.startswith("cuda"):
        return config
    return dataclasses.replace(config, device=f"cuda:{index * config.tensor_parallel_size}", data_parallel_size=1)
