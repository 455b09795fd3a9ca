"""A Team under Lightning: torchrun --nproc-per-node 3 docs/ddp/with_lightning.py."""

import os

import lightning
import torch
from torch import nn
from torch.utils import data

from hetsim import Team


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))

    def train_dataloader(self):  # the model is a DistributedDataParallel by now
        x = torch.randn(3000, 20, generator=torch.Generator().manual_seed(0))
        self.team = Team(self.trainer.strategy.model, None, batch_size=300, allocation="dbs")
        return self.team.loader(data.TensorDataset(x, x[:, :3].argmax(dim=1)))

    def training_step(self, batch, _):
        inputs, targets = batch
        return self.team.share(nn.functional.cross_entropy(self.model(inputs), targets, reduction="none"))

    def on_before_optimizer_step(self, _):  # before Lightning clips
        self.team.step()

    def on_train_epoch_end(self):
        self.print(f"epoch {self.current_epoch}: shares {self.team.shares}")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def main():
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    devices = int(os.environ["LOCAL_WORLD_SIZE"])
    trainer = lightning.Trainer(accelerator="auto", devices=devices, strategy="ddp", max_epochs=2, use_distributed_sampler=False, **quiet)
    trainer.fit(Classifier())


if __name__ == "__main__":
    main()
