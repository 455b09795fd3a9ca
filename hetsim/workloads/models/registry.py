"""Models by name: hetsim's own, or any classification model of torchvision."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hetsim import checks
from hetsim.memory import check_fits
from hetsim.workloads.models.small import lenet, mlp, resnet20
from hetsim.workloads.models.torchvision import classifier

COPIES = 4
"""The number of copies of the parameters: the model's, the initial weights, the current weights, and a gradient."""
OWN: dict[str, Callable[..., nn.Module]] = {"mlp": mlp, "lenet": lenet, "resnet20": resnet20}


def check_model(name: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError if one of hetsim's models lacks one of these options."""
    if name in OWN:
        allowed = [option for option in inspect.signature(OWN[name]).parameters if option not in ("shape", "num_classes")]
        for option in options:
            if option not in allowed:
                raise ValueError(
                    f"workload.model_options.{option} is not an option of {name} ({', '.join(allowed)}): "
                    + checks.without(f"workload.model_options.{option}")
                )


def build_model(name: str, options: Mapping[str, Any], *, shape: Sequence[int], num_classes: int, seed: int) -> nn.Module:
    """The model with this seed's initial weights. Raises ValueError for an unknown name, or a model that cannot take these inputs."""
    check_model(name, options)
    builder = OWN[name] if name in OWN else classifier(name, own_models=list(OWN))
    size = " x ".join(map(str, shape))
    _check_size(name, builder, shape, num_classes, options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = builder(shape, num_classes, **options)
        except Exception as error:
            raise ValueError(f"workload.model={name} on inputs of {size} refuses model_options {dict(options)}: {_reason(error)}") from None
        try:
            answer = logits(model.eval()(torch.zeros(1, *shape)))
        except Exception as error:
            with_options, correct = (f" with {dict(options)}", "correct workload.model_options, ") if options else ("", "")
            raise ValueError(
                f"workload.model={name} cannot take inputs of {size}{with_options} ({_reason(error)}): "
                f"set workload.resize to a larger image side, {correct}or choose another model"
            ) from None
    if answer.shape != (1, num_classes):
        raise ValueError(f"workload.model={name} answers {tuple(answer.shape)} for one input, not (1, {num_classes}): choose a classifier")
    return model


def _check_size(name: str, builder: Callable[..., nn.Module], shape: Sequence[int], num_classes: int, options: Mapping[str, Any]) -> None:
    """Raise ValueError if the parameters do not fit in memory. They are counted on torch's meta device, which needs no memory."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            count = sum(parameter.numel() for parameter in builder(shape, num_classes, **options).parameters())
    except Exception:  # it is built again, and there the error is reported
        return
    check_fits(f"workload.model={name} with {dict(options)}, of {count} parameters,", COPIES * 4 * count, "make it smaller")


def logits(output: Any) -> torch.Tensor:
    """A model's output without the auxiliary outputs that some of torchvision's models return."""
    answer: torch.Tensor = output if isinstance(output, torch.Tensor) else output.logits
    return answer


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
