"""Ranks in real processes over gloo, which all run one function; they are forked from the process that all tests fork theirs from."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from hetsim.dist import launch

SECONDS = 240
"""How long all of it may take."""


def world(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `function(rank, *arguments)` returns on each of `size` ranks; RuntimeError with the first traceback if one raises."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*launch.PRELOAD, "torch.nn.parallel", "hetsim.ddp"])
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    processes = [
        context.Process(target=_rank, args=(rank, size, store.port, pipes[rank][1], function, arguments), daemon=False)
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        return _results([pipe for pipe, _ in pipes])
    finally:
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


def _results(pipes: Sequence[Connection]) -> list[Any]:
    results = []
    for rank, pipe in enumerate(pipes):
        if not pipe.poll(SECONDS):
            raise RuntimeError(f"rank {rank} has said nothing for {SECONDS} s")
        result, error = pipe.recv()
        if error:
            raise RuntimeError(f"rank {rank}: {error}")
        results.append(result)
    return results


def _rank(rank: int, size: int, port: int, pipe: Connection, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    torch.set_num_threads(1)
    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
        pipe.send((function(rank, *arguments), ""))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        pipe.send((None, traceback.format_exc()))
        raise SystemExit(1) from None
