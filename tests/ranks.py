"""Ranks in real processes over gloo, which all run one function; they are forked from the process that all tests fork theirs from."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import runpy
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from processes import forking

SECONDS = 240
"""How long all of it may take."""


def world(size: int, function: Callable[..., Any], *arguments: Any, joined: bool = True) -> list[Any]:
    """What `function(rank, *arguments)` returns on each of `size` ranks; RuntimeError with the first traceback if one raises.

    Without `joined`, there is no process group yet, and it is `function(rank, size, *arguments)`.
    """
    context = forking("torch.nn.parallel", "hetsim.loop")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    processes = [
        context.Process(target=_rank, args=(rank, size, store.port if joined else None, pipes[rank][1], function, arguments))
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


def found_by(laws: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """What each law returns, by its name, or its traceback; and under `NAME seconds` how long it took."""
    found = {}
    for name, law in laws.items():
        began = time.perf_counter()
        try:
            found[name] = law()
        except Exception:
            found[name] = traceback.format_exc()
        found[f"{name} seconds"] = time.perf_counter() - began
    return found


def _results(pipes: Sequence[Connection]) -> list[Any]:
    results = []
    for rank, pipe in enumerate(pipes):
        if not pipe.poll(SECONDS):
            raise RuntimeError(f"rank {rank} has said nothing for {SECONDS} s")
        result, error = pipe.recv()
        if error:
            later = [(other, pipes[other].recv()[1]) for other in range(rank + 1, len(pipes)) if pipes[other].poll(5)]
            raise RuntimeError("\n".join(f"rank {which}: {text}" for which, text in [(rank, error), *later] if text))
        results.append(result)
    return results


def _rank(rank: int, size: int, port: int | None, pipe: Connection, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    torch.set_num_threads(1)
    try:
        if port is None:
            pipe.send((function(rank, size, *arguments), ""))
            return
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=300))
        pipe.send((function(rank, *arguments), ""))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        pipe.send((None, traceback.format_exc()))
        raise SystemExit(1) from None


def result(found: Sequence[dict[str, Any]], law: str, rank: int = 0) -> Any:
    """What a law returned on this rank; if it raised, that is the failure."""
    value = found[rank][law]
    assert not (isinstance(value, str) and "Traceback" in value), value
    return value


def run_scripts(size: int, runs: Sequence[tuple[Path, Sequence[str], dict[str, str]]]) -> list[str]:
    """What rank 0 prints in each of these scripts, which take arguments and variables, and make their process groups as under torchrun."""
    # as torchrun, the parent has the stores: a port that is only looked up may be taken before a rank listens to it
    stores = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in runs]
    ports = [store.port for store in stores]
    return world(size, _scripts, [(str(path), list(arguments), known) for path, arguments, known in runs], ports, joined=False)[0]


def _scripts(rank: int, size: int, runs: Sequence[tuple[str, list[str], dict[str, str]]], ports: Sequence[int]) -> list[str]:
    said = []
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1")
    os.environ.update(TORCHELASTIC_RUN_ID="tests", TORCHELASTIC_USE_AGENT_STORE="True")
    at_exit: list[Callable[[], Any]] = []
    atexit.register = lambda function: at_exit.append(function) or function  # type: ignore[assignment, func-returns-value]
    for (path, arguments, known), port in zip(runs, ports, strict=True):
        os.environ.update(known, MASTER_PORT=str(port))
        sys.argv = [path, *arguments]
        with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
            runpy.run_path(path, run_name="__main__")
        while at_exit:
            at_exit.pop()()
        said.append(printed.getvalue())
        for name in known:
            del os.environ[name]
        if dist.is_initialized():
            dist.destroy_process_group()
    return said
