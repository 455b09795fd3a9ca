"""The variables of the four models, how TensorFlow deals them out to servers, and the share of an update that the busiest server has.

The layers are those of Tensor2Tensor (`resnet_cifar_15`, `resnet_cifar_32`, `shakeshake_small`, `shakeshake_big`), in the order in which it
creates them: https://github.com/tensorflow/tensor2tensor, commit bafdc1b6. The sizes add up to the published numbers of parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

BYTES = 4
CLASSES = 10


class Variable(NamedTuple):
    """One tensor that is kept on a server."""

    size: int
    trained: bool = True


def convolution(inputs: int, outputs: int, width: int, *, bias: bool) -> list[Variable]:
    """A kernel, and a bias if there is one."""
    return [Variable(width**2 * inputs * outputs), *([Variable(outputs)] if bias else [])]


def normalization(channels: int) -> list[Variable]:
    """Scale and offset, and the moving mean and variance, which are not trained."""
    return [Variable(channels), Variable(channels), Variable(channels, trained=False), Variable(channels, trained=False)]


def dense(inputs: int) -> list[Variable]:
    """The last layer."""
    return [Variable(inputs * CLASSES), Variable(CLASSES)]


def resnet(blocks: int) -> list[Variable]:
    """Three stages of residual blocks, whose convolutions have no bias: five variables to a layer."""
    channels = 16
    found = convolution(3, channels, 7, bias=False) + normalization(channels)
    for filters in (32, 64, 128):
        for block in range(blocks):
            found += normalization(channels)
            if block == 0:
                found += convolution(channels, filters, 1, bias=False) + normalization(filters)
            found += convolution(channels, filters, 3, bias=False) + normalization(filters) + convolution(filters, filters, 3, bias=False)
            channels = filters
    return found + dense(channels)


def shake_shake(width: int) -> list[Variable]:
    """Three stages of four blocks with two branches, whose convolutions have a bias: six variables to a layer."""
    channels = 16
    found = convolution(3, channels, 3, bias=True) + normalization(channels)
    for filters in (width, 2 * width, 4 * width):
        for _ in range(4):
            for _ in range(2):
                found += convolution(channels, filters, 3, bias=True) + normalization(filters)
                found += convolution(filters, filters, 3, bias=True) + normalization(filters)
            if channels != filters:
                found += 2 * convolution(channels, filters // 2, 1, bias=True) + normalization(filters)
            channels = filters
    return found + dense(channels)


MODELS = {"resnet15": resnet(2), "resnet32": resnet(5), "shakeshake_small": shake_shake(32), "shakeshake_big": shake_shake(96)}


class Cost(NamedTuple):
    """What a server takes for an update: so long for each variable, and for each byte."""

    seconds_per_variable: float
    seconds_per_byte: float

    def seconds(self, variables: list[Variable]) -> float:
        """For an update of these variables."""
        nbytes = BYTES * sum(variable.size for variable in variables)
        return self.seconds_per_variable * len(variables) + self.seconds_per_byte * nbytes

    def largest_share(self, model: str, num_servers: int) -> float:
        """The part of an update's time that the busiest server has, if variable i is on server i mod `num_servers`."""
        variables = MODELS[model]
        return max(self.seconds(variables[first::num_servers]) for first in range(num_servers)) / self.seconds(variables)


def fitted(service_seconds: Mapping[str, float]) -> Cost:
    """The cost with the least squares of relative errors of the models' times at one server, neither part below zero."""
    rows = [(Cost(1, 0).seconds(MODELS[model]), Cost(0, 1).seconds(MODELS[model])) for model in service_seconds]
    found, _ = nnls(np.array(rows) / np.array([*service_seconds.values()])[:, None], np.ones(len(rows)))
    return Cost(*map(float, found))
