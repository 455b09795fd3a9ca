"""torchvision's classification models by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from hetsim import checks


def classifier(name: str, *, own_models: Sequence[str]) -> Callable[..., Any]:
    """A builder (shape, num_classes, **options) of torchvision's untrained classification model with this name."""
    import torchvision.models
    from torch import nn

    names = torchvision.models.list_models(module=torchvision.models)
    if name not in names:
        raise ValueError(
            f"workload.model must be {', '.join(own_models)} or a classification model of torchvision, not {name!r}"
            f"{checks.suggestion(name, [*own_models, *names])}"
        )

    class ThreeChannels(nn.Module):
        """Repeats one grey channel three times."""

        def forward(self, images: Any) -> Any:
            return images.expand(-1, 3, -1, -1)

    def build(shape: Sequence[int], num_classes: int, **options: Any) -> nn.Module:
        builder = torchvision.models.get_model_builder(name)
        if len(shape) != 3:
            raise ValueError("it takes images")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model: nn.Module = builder(weights=None, num_classes=num_classes, **options)
        return model if shape[0] == 3 else nn.Sequential(ThreeChannels(), model)

    return build
