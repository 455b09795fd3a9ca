"""A Team that survives the loss of ranks: torchrun --nproc-per-node 3 --max-restarts 3 docs/ddp/with_elastic.py CHECKPOINT."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils import data

from hetsim import Team

EVERY = 5  # steps from one checkpoint to the next


def main(checkpoint):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(3000, 20)
    dataset = data.TensorDataset(x, x[:, :3].argmax(dim=1))
    model = DDP(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    team = Team(model, optimizer, batch_size=300, allocation="dbs")
    if os.path.exists(checkpoint):  # every rank loads it, however many there are now
        saved = torch.load(checkpoint, weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        team.load_state_dict(saved["team"])
    loader = team.loader(dataset)

    def save():
        if dist.get_rank() == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "team": team.state_dict()}
            torch.save(state, f"{checkpoint}.new")
            os.replace(f"{checkpoint}.new", checkpoint)  # a kill leaves the old file or the new one, never a part

    for epoch in range(team.epoch, 2):
        for step, (inputs, targets) in enumerate(loader, start=1):
            losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
            optimizer.zero_grad()
            team.share(losses).backward()
            team.step()
            if step % EVERY == 0:
                save()
        save()
        loss = team.mean(losses.detach().mean())
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
