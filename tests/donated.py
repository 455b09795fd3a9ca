"""Programs whose donated vectors are lost: a vector that an effect may overwrite is NaN after it, and may be in no later effect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from hetsim import effects as fx

OPERANDS = {fx.AllReduce: "value", fx.Update: "gradient", fx.LocalUpdate: "gradient"}
"""The operand of each effect that has an `in_place`."""


def poisoned(program: fx.Program[Any]) -> fx.Program[Any]:
    """The program in a world that overwrites each donated vector by NaN, and in which no two ranks share a vector, as in real processes."""
    donated: list[torch.Tensor] = []
    answer: Any = None
    while True:
        try:
            effect = program.send(answer)
        except StopIteration as ended:
            return ended.value
        started = effect.effect if isinstance(effect, fx.Start) else effect
        addresses = {vector.untyped_storage().data_ptr() for vector in donated}
        for vector in vectors(started):
            assert vector.untyped_storage().data_ptr() not in addresses, f"{type(started).__name__} reads a vector that was donated"
        name = OPERANDS.get(type(started), "")
        if not getattr(started, "in_place", False):
            answer = own((yield effect))
            continue
        vector = getattr(started, name)
        instead = replace(started, **{name: vector.clone()})
        answer = own((yield fx.Start(instead) if isinstance(effect, fx.Start) else instead))
        donated.append(vector.fill_(torch.nan))


def vectors(effect: fx.Effect[Any]) -> Iterator[torch.Tensor]:
    """Those that an effect brings."""
    for name in ("at", "gradient", "value", "payload"):
        if isinstance(value := getattr(effect, name, None), torch.Tensor):
            yield value


def own(answer: Any) -> Any:
    """The answer with a vector that nobody else has."""
    if isinstance(answer, torch.Tensor):
        return answer.clone()
    if isinstance(answer, fx.Computed) and isinstance(answer.gradient, torch.Tensor):
        return replace(answer, gradient=answer.gradient.clone())
    if isinstance(answer, fx.Message) and isinstance(answer.payload, torch.Tensor):
        return fx.Message(answer.source, answer.header, answer.payload.clone())
    return answer
