"""A job that measure.py kills: torchrun --nproc-per-node 3 --max-restarts 1 killed.py CHECKPOINT EVENTS

It trains a model of 102 MB on a Team, saves it with its momentum every five steps, and writes down when each thing was done.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

BEGAN = time.time()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from hetsim import Team  # noqa: E402

EVERY, LOST_IN, NUM_STEPS, WIDTH = 5, 8, 12, 5060


def main(checkpoint: str, events: str) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    team = Team(model, optimizer, batch_size=12)
    is_resumed = Path(checkpoint).exists()

    def note(what: str, seconds: float) -> None:
        if dist.get_rank() == 0:
            with Path(events).open("a", encoding="utf-8") as file:
                file.write(f"{what},{seconds!r}\n")

    note("began", BEGAN)
    if is_resumed:
        saved = torch.load(checkpoint, weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        team.load_state_dict(saved["team"])
    x = torch.randn(12 * NUM_STEPS, WIDTH)
    loader = team.loader(TensorDataset(x, x))
    note("ready", time.time())
    for step, (inputs, targets) in enumerate(loader, start=1):
        loss = team.share(nn.functional.mse_loss(model(inputs), targets, reduction="none"))
        if step == LOST_IN and dist.get_rank() == 1 and not is_resumed:
            Path(events).with_name("killed").write_text(repr(time.time()), encoding="utf-8")
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss.backward()
        team.step()
        note("step", time.time())
        if step % EVERY == 0 and dist.get_rank() == 0:
            before = time.time()
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "team": team.state_dict()}
            torch.save(state, f"{checkpoint}.new")
            Path(f"{checkpoint}.new").replace(checkpoint)
            note("saved", time.time() - before)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
