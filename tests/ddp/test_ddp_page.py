"""The loops in docs/guide/ddp.md train as one process does."""

from __future__ import annotations

from typing import Any

import pages
import pytest
import torch
from ddp_laws import BATCH_SIZE, UNEVEN, Samples, farthest, mlp, serial_batches
from ranks import world
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from hetsim.ddp import Team
from hetsim.ddp.schedule import Data

BLOCKS = [block.split("```")[0] for block in pages.text("ddp.md").split("```python\n")[1:]]
LOOPS = [block for block in BLOCKS if "optimizer.step()" in block]
STEPS = 4


def train(_: int) -> list[float]:
    """Run each loop at uneven shares; the farthest that a weight is from that of one process."""
    samples, worst = Samples(BATCH_SIZE * STEPS), []
    data = torch.utils.data.TensorDataset(samples.x, samples.y)
    for loop in LOOPS:
        model, alone = mlp(), mlp()
        optimizer, stepped = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, alone))
        known: dict[str, Any] = {
            "optimizer": optimizer,
            "criterion": mse_loss,
            "dataset": data,
            "max_iters": STEPS,
            "DDP": DistributedDataParallel,
        }
        if "Team(" in loop:
            known |= {"Team": lambda **given: Team(BATCH_SIZE, UNEVEN) if given else None, "model": model}
        else:
            team = Team(BATCH_SIZE, UNEVEN)
            known |= {"loader": team.loader(data, drop_last=True), "model": team.wrap(DistributedDataParallel(model))}
        exec(loop, known)
        for places in serial_batches(Data(len(samples), BATCH_SIZE), 0):
            stepped.zero_grad()
            mse_loss(alone(samples.x[places]), samples.y[places]).backward()
            stepped.step()
        worst.append(farthest(list(model.parameters()), list(alone.parameters())))
    return worst


@pytest.mark.slow
def test_the_loops_of_the_page_train_as_one_process_does() -> None:
    """One that draws between forward and backward, nanoGPT's with the five lines, and a prefetcher's."""
    found = world(3, train)

    assert len(found[0]) == 3
    assert all(error < 1e-12 for each in found for error in each)
