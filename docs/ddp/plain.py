"""An ordinary DistributedDataParallel script: torchrun --nproc-per-node 3 docs/ddp/plain.py CHECKPOINT."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils import data


def main(checkpoint):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(3000, 20)
    dataset = data.TensorDataset(x, x[:, :3].argmax(dim=1))
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    sampler = data.DistributedSampler(dataset)
    loader = data.DataLoader(dataset, batch_size=100, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}")
            torch.save({"model": model.module.state_dict(), "epoch": epoch + 1}, checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
