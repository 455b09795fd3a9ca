"""Where a task computes. There is the CPU; a GPU is one more class and one more entry of `DEVICES`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from hetsim import checks


class Device(ABC):
    """What holds a task's vectors and computes its gradients and updates."""

    name: ClassVar[str]
    """As torch names it."""

    @abstractmethod
    def synchronise(self) -> None:
        """Wait until everything queued on the device is done, so that a clock read afterwards includes it."""


class CPU(Device):
    """Nothing is queued: a function returns when its result is computed."""

    name: ClassVar[str] = "cpu"

    def synchronise(self) -> None:
        return None


DEVICES: dict[str, Device] = {known.name: known for known in (CPU(),)}


def device(name: str) -> Device:
    """The device of this name; ValueError if there is none."""
    return DEVICES[checks.choice("device", name, tuple(DEVICES))]
