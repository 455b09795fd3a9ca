"""Models for small images: mlp, lenet and resnet20."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import nn

from hetsim import checks


def mlp(shape: Sequence[int], num_classes: int, *, hidden: Sequence[int] = (32,), dropout: float = 0.0) -> nn.Module:
    """Linear layers with ReLU between them, and dropout after each ReLU."""
    if isinstance(hidden, int):
        raise ValueError(f"hidden must be a list of widths, such as [{hidden}]")
    widths = [math.prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for num_inputs, num_outputs in itertools.pairwise(widths):
        layers += [nn.Linear(num_inputs, num_outputs), nn.ReLU(), *_dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))


def lenet(shape: Sequence[int], num_classes: int, *, dropout: float = 0.0) -> nn.Module:
    """LeNet-5 with ReLU and max pooling (LeCun et al. 1998, 10.1109/5.726791), for images of any size from 4 x 4."""
    if len(shape) != 3:
        raise ValueError("it takes images")
    channels, height, width = shape
    if min(height, width) < 4:
        raise ValueError("it takes images from 4 x 4")
    return nn.Sequential(
        *(nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(16 * (height // 4) * (width // 4), 120), nn.ReLU(), *_dropout(dropout)),
        *(nn.Linear(120, 84), nn.ReLU(), *_dropout(dropout)),
        nn.Linear(84, num_classes),
    )


class Residual(nn.Module):
    """Two 3 x 3 convolutions with batch norm, and a shortcut that skips pixels and adds zero channels where shapes differ."""

    def __init__(self, channels: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.stride, self.added = stride, channels_out - channels
        self.straight = nn.Sequential(
            *(nn.Conv2d(channels, channels_out, 3, stride, padding=1, bias=False), nn.BatchNorm2d(channels_out), nn.ReLU()),
            *(nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False), nn.BatchNorm2d(channels_out)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))
        return torch.relu(self.straight(x) + shortcut)


def resnet20(shape: Sequence[int], num_classes: int, *, width: int = 16) -> nn.Module:
    """ResNet-20 for small images (He et al. 2015, arXiv 1512.03385, section 4.2): three stages of three residual blocks."""
    if len(shape) != 3:
        raise ValueError("it takes images")
    widths = [width] * 4 + [2 * width] * 3 + [4 * width] * 3
    blocks = [
        Residual(channels, channels_out, 1 if channels == channels_out else 2) for channels, channels_out in itertools.pairwise(widths)
    ]
    return nn.Sequential(
        *(nn.Conv2d(shape[0], width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
        *(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, num_classes)),
    )


def _dropout(probability: float) -> list[nn.Module]:
    return [nn.Dropout(probability)] if checks.fraction("dropout", probability) else []
