"""The data from which a run takes its batches."""

from __future__ import annotations

import torch

from hetsim.workloads.device import Device
from hetsim.workloads.tasks.sequence import Indices


class Rows:
    """The samples of a tensor, along its first axis.

    They are on the device if they fit there. Otherwise they are in the CPU's memory, and each batch is copied to the device.
    """

    def __init__(self, data: torch.Tensor, device: Device) -> None:
        self.device = device
        self.shape = tuple(data.shape[1:])
        self.on_device = device.has_room_for(data.numel() * data.element_size())
        """Whether all samples are on the device."""
        self.data = device.place(data) if self.on_device else device.pin(data)

    def __len__(self) -> int:
        return len(self.data)

    def take(self, indices: Indices) -> torch.Tensor:
        """These samples, on the device."""
        rows = torch.from_numpy(indices)
        if self.on_device:
            return self.data.index_select(0, self.device.place(rows))
        return self.device.place(self.device.pin(self.data.index_select(0, rows)))
