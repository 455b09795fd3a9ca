"""A Team that survives the loss of ranks: torchrun --nproc-per-node 3 --max-restarts 3 docs/ddp/with_elastic.py CHECKPOINT."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils import data

from hetsim.ddp import Team

EVERY = 5  # steps from one checkpoint to the next


def main(checkpoint):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(3000, 20)
    dataset = data.TensorDataset(x, x[:, :3].argmax(dim=1))
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    team = Team(batch_size=300, allocation="dbs")
    if os.path.exists(checkpoint):  # every rank loads it, however many there are now
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        team.load_state_dict(saved["team"])
    loader = team.loader(dataset)
    ddp = team.wrap(DDP(model))

    def save():
        if dist.get_rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "team": team.state_dict()}
            torch.save(state, f"{checkpoint}.new")
            os.replace(f"{checkpoint}.new", checkpoint)  # a kill leaves the old file or the new one, never a part

    for epoch in range(team.epoch, 2):
        for step, (inputs, targets) in enumerate(loader, start=1):
            loss = nn.functional.cross_entropy(ddp(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % EVERY == 0:
                save()
        save()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
