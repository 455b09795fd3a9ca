"""The same script with a Team: torchrun --nproc-per-node 3 docs/ddp/with_team.py CHECKPOINT."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils import data

from hetsim import Team


def main(checkpoint):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(3000, 20)
    dataset = data.TensorDataset(x, x[:, :3].argmax(dim=1))
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    team = Team(model, optimizer, batch_size=300, allocation="dbs")
    loader = team.loader(dataset)
    for epoch in range(2):
        for inputs, targets in loader:
            loss = team.share(nn.functional.cross_entropy(model(inputs), targets, reduction="none"))
            optimizer.zero_grad()
            loss.backward()
            team.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}")
            torch.save({"model": model.module.state_dict(), "epoch": epoch + 1}, checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
