"""A Team under Accelerate: torchrun --nproc-per-node 3 docs/ddp/with_accelerate.py."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils import data

from hetsim.ddp import Team


def main():
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(0)
    x = torch.randn(3000, 20)
    dataset = data.TensorDataset(x, x[:, :3].argmax(dim=1))
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    team = Team(batch_size=300)
    loader = team.loader(dataset, device=accelerator.device)  # no DataLoader: prepare would leave it as it is
    model, optimizer = accelerator.prepare(model, optimizer)
    model = team.wrap(model)  # after prepare, which makes it a DistributedDataParallel
    for epoch in range(2):
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
