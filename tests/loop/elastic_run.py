"""docs/ddp/with_elastic.py in double precision. Each rank writes down the samples of its steps, and one of them may be lost.

Arguments: the checkpoint, the folder of these files, and the loss as MANNER:RANK:STEP. A run that resumes loses nothing.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils.data import TensorDataset

SCRIPT = Path(__file__).parents[2] / "docs" / "ddp" / "with_elastic.py"


def lose(manner: str) -> None:
    """Kill this rank, or its agent too; or end as a rank does that its agent ends."""
    if manner == "end":
        raise SystemExit
    if manner == "agent":
        os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def main(checkpoint: str, folder: str, loss: str = "none:none:0") -> None:
    rank, size, restart = os.environ["RANK"], int(os.environ["WORLD_SIZE"]), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    manner, lost, last = loss.split(":")
    is_lost = lost in (rank, "all") and not Path(checkpoint).exists()
    drawn: list[int] = []
    number = 0

    def get(dataset: TensorDataset, place: int) -> Any:
        drawn.append(place)
        return get_sample(dataset, place)

    def zero_grad(optimizer: torch.optim.SGD) -> None:
        if is_lost and number + 1 == int(last):  # after the forward pass: the other ranks wait for this rank's gradients
            shutil.copy(checkpoint, f"{checkpoint}.kept")
            lose(manner)
        zero_gradients(optimizer)

    def step(optimizer: torch.optim.SGD) -> None:
        nonlocal number
        update(optimizer)
        number += 1
        file.write(json.dumps({"restart": int(restart), "size": size, "step": number, "samples": drawn}) + "\n")
        file.flush()
        drawn.clear()

    get_sample, zero_gradients, update = TensorDataset.__getitem__, torch.optim.SGD.zero_grad, torch.optim.SGD.step
    torch.set_default_dtype(torch.float64)
    sys.argv = [str(SCRIPT), checkpoint]
    with (
        (Path(folder) / f"{restart}-{rank}").open("a", encoding="utf-8") as file,
        mock.patch.object(TensorDataset, "__getitem__", get),
        mock.patch.object(torch.optim.SGD, "zero_grad", zero_grad),
        mock.patch.object(torch.optim.SGD, "step", step),
    ):
        runpy.run_path(str(SCRIPT), run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
