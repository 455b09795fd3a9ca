"""A Team under Accelerate: torchrun --nproc-per-node 3 docs/ddp/with_accelerate.py."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils import data

from hetsim import Team


def main():
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
    torch.manual_seed(0)
    x = torch.randn(3000, 20)
    dataset = data.TensorDataset(x, x[:, :3].argmax(dim=1))
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model, optimizer = accelerator.prepare(model, optimizer)
    team = Team(model, None, batch_size=300, allocation="dbs", accumulate=accelerator.gradient_accumulation_steps)
    loader = team.loader(dataset, device=accelerator.device)  # no DataLoader, so prepare would leave it as it is
    for epoch in range(2):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
                accelerator.backward(team.share(losses) * accelerator.gradient_accumulation_steps)  # by which backward divides it
                if accelerator.sync_gradients:
                    team.step()  # before clipping, which sees the gradient of all ranks
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: loss {team.mean(losses.mean()).item():.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
