"""Runs with a one-step delay, on a server and in a ring."""

from __future__ import annotations

from typing import Any

import pytest
from test_programs_by_hand import PLAIN
from worlds import Run, experiment

from hetsim.coordination.delayed_all_reduce import DelayedAllReduce
from hetsim.coordination.delayed_server import DelayedParameterServer
from hetsim.effects import Batch, Computed
from hetsim.policies.admission import Barrier
from hetsim.runtime.experiment import Experiment

DELAYED = {"server": "one_step_delay", "all_reduce": "one_step_delay_all_reduce"}
BOTH = pytest.mark.parametrize("where", DELAYED)


def on_a_server(**policies: Any) -> DelayedParameterServer:
    """OD-SGD around a server."""
    return DelayedParameterServer(**{**PLAIN, "admission": Barrier(), "warm_up": 0, **policies})


def in_a_ring(**policies: Any) -> DelayedAllReduce:
    """OD-SGD without a server."""
    return DelayedAllReduce(**{**PLAIN, "admission": Barrier(), "warm_up": 0, **policies})


class Number(float):
    """A vector of one number that can be asked for its zero."""

    shape = ()

    def new_zeros(self, shape: tuple[()]) -> float:
        """Nothing."""
        return 0.0


def computed(value: float) -> Computed:
    """A gradient over two samples, in one second."""
    return Computed(value, 0.5, 2, 1.0)


LINK = {"latency_seconds": 0.125, "bytes_per_second": 64.0, "sharing": "none"}
SIZES = {"num_parameters": 8, "num_samples": 60_000}  # 32 bytes
MESSAGE = 0.125 + 32 / 64
RING = 2 * (0.125 + 32 / (2 * 64))  # of two


def delayed(where: str, *choices: str, warm_up: int = 3, coordination: dict[str, Any] | None = None, **keys: Any) -> Experiment:
    """OD-SGD on a server or in a ring, with rates of its own."""
    rates = {"learning_rate": 0.1, "momentum": 0.9, "local_learning_rate": 0.05}
    more = {"warm_up": warm_up, **(coordination or {})}
    return experiment("method=od_sgd", f"coordination={DELAYED[where]}", *choices, **{**rates, **keys}, coordination=more)


def applied(run: Run) -> list[Batch]:
    """The ranges that went into versions."""
    return [c.batch for group in run.applied for c in group]
