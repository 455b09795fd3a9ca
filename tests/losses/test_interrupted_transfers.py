"""What is under way when a rank is lost, in the midst of a large vector: gloo leaves it waiting for ever, and its group must not."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import forking

from hetsim.checkpoints.file import pack_state, unpack_state
from hetsim.distributed.communication.gloo import GlooGroup
from hetsim.effects import PeerLost

pytestmark = pytest.mark.slow

SIZE = 20_000_000
"""Elements of 4 bytes: most of the time they are on their way."""
SOON, LATER = 0.7, 1.5
"""Seconds until the other rank is killed, and until this one is told."""
OPPOSITE = {"send": "receive", "receive": "send", "send_state": "receive_state", "receive_state": "send_state"}


def operate(what: str, group: GlooGroup, vector: torch.Tensor, other: int) -> None:
    """The operation of this name, with the other rank."""
    if what == "send":
        group.send_bytes([vector.numpy().tobytes()], other)
    elif what == "receive":
        list(group.receive_bytes(other))
    elif what == "send_state":
        group.control.send_bytes([pack_state({"weights": vector})], other)
    elif what == "receive_state":
        unpack_state(b"".join(group.control.receive_bytes(other)), {})
    elif what == "all_gather":
        group.all_gather(torch.cat([vector, vector]), vector)
    elif what == "all_to_all":
        group.all_to_all(vector, vector.clone())
    elif what == "sum":
        group.sum(vector)
    else:
        group.barrier()


def _run(rank: int, what: str, port: int, how: str, pipe: Any) -> None:
    store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)  # type: ignore[attr-defined]
    group = GlooGroup.form(store, "group", rank=rank, members=[0, 1])
    vector = torch.zeros(SIZE)
    begun = time.monotonic()
    group.control.barrier()
    if rank == 1:
        threading.Timer(SOON, os.kill, (os.getpid(), signal.SIGKILL)).start()
        while True:
            operate(OPPOSITE.get(what, what), group, vector, 0)
    threading.Timer(LATER, group.interrupt if how == "interrupted" else partial(group.lose, 1)).start()
    try:
        while True:
            operate(what, group, vector, 1)
    except PeerLost:
        pipe.send(time.monotonic() - begun)


@pytest.mark.realtime
@pytest.mark.parametrize(
    ("what", "how"),
    [
        ("send", "interrupted"), ("receive", "interrupted"), ("all_gather", "interrupted"), ("receive_state", "interrupted"),
        pytest.param("send_state", "interrupted", marks=pytest.mark.long),
        *(pytest.param(what, "interrupted", marks=pytest.mark.long) for what in ("all_to_all", "sum", "barrier")),
        *(pytest.param(what, "lost", marks=pytest.mark.long) for what in ("send", "receive")),
    ],
)  # fmt: skip
@pytest.mark.sampled(2)
def test_it_ends_when_the_group_is_interrupted_or_the_rank_is_lost(what: str, how: str) -> None:
    """It raises PeerLost soon after, if not before; and the process can end."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    context = forking()
    ours, theirs = context.Pipe()
    ranks = [context.Process(target=_run, args=(rank, what, port, how, theirs), daemon=True) for rank in range(2)]
    for each in ranks:
        each.start()
    try:
        assert ours.poll(120), "it waits for ever"
        took = ours.recv()
        ranks[0].join(120)
        assert ranks[0].exitcode == 0
    finally:
        for each in ranks:
            each.kill()
    assert SOON <= took < LATER + 30
