"""The classes whose objects a checkpoint may contain, and the check of a value against its field's type."""

from __future__ import annotations

import sys
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from hetsim.coordination.bookkeeping.outstanding import Pushes
from hetsim.coordination.bookkeeping.timings import ComputedBatches, UnreportedTimings
from hetsim.coordination.state import State
from hetsim.coordination.trials import Tried
from hetsim.effects import Batch, Contribution, Fragment
from hetsim.policies.admission import ArrivalState, ClockState, Mean, RoundState
from hetsim.policies.allocation.adaptive_tasks import AdaptiveTasksState
from hetsim.policies.allocation.gradual_shift import GradualShiftState
from hetsim.policies.allocation.optperf import OptPerfState, TimingSums
from hetsim.policies.allocation.periodic import PeriodicState
from hetsim.policies.allocation.static import StaticState
from hetsim.policies.compensation import DanaState, GapAwareState
from hetsim.policies.compression import TopKState, TwoBitState
from hetsim.policies.quorum import QuorumState
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.rank import Checkpoint, RankState
from hetsim.runtime.recording.curve import Point
from hetsim.workloads.task import Evaluation

SHIPPED: tuple[type, ...] = (
    *(
        AdaptiveTasksState,
        ArrivalState,
        Batch,
        Checkpoint,
        ClockState,
        ComputedBatches,
        Contribution,
        DanaState,
        Evaluation,
        Fragment,
        GapAwareState,
        GradualShiftState,
    ),
    *(Mean, OptPerfState, PeriodicState, Point, Pushes, QuorumState, RankState, RoundState, State, StaticState, TimingSums, TwoBitState),
    *(TopKState, Tried, UnreportedTimings),
)


class VectorType:
    """Stands for a vector in a field's type: with the size and kind of the run's weights, or None."""


def name_of(kind: type) -> str:
    """The name of a class in a checkpoint."""
    return f"{kind.__module__}.{kind.__qualname__}"


def kinds_of(experiment: Experiment) -> dict[str, type]:
    """The classes by name: hetsim's, and the dataclasses and named tuples in the modules of the user's own policies."""
    found = {name_of(kind): kind for kind in SHIPPED}
    coordination = experiment.coordination
    for part in (coordination, *(getattr(coordination, its.name) for its in fields(coordination))):
        module = type(part).__module__
        if module.split(".")[0] not in ("hetsim", "builtins"):
            own = vars(sys.modules[module]).values()
            found.update({name_of(kind): kind for kind in own if isinstance(kind, type) and field_names(kind) is not None})
    return found


def field_names(kind: type) -> list[str] | None:
    """The names of the values that make an object of this class; None for other kinds of classes."""
    if is_dataclass(kind):
        return [its.name for its in fields(kind) if its.init]
    return list(kind._fields) if issubclass(kind, tuple) and hasattr(kind, "_fields") else None


@cache
def hints(kind: Any) -> dict[str, Any]:
    """The types of a class's fields; empty if they contain names that cannot be resolved."""
    try:
        return get_type_hints(kind, localns={"Vector": VectorType})
    except (NameError, TypeError, AttributeError):
        return {}


@dataclass(frozen=True)
class Fits:
    """Checks whether values have a type. `is_vector` recognises vectors."""

    is_vector: Any

    def __call__(self, value: Any, hint: Any) -> bool:
        """Whether this value is of this type."""
        origin, inner = get_origin(hint), get_args(hint)
        if hint is Any or hint is object:
            return True
        if hint is VectorType:
            return value is None or bool(self.is_vector(value))
        if hint is None or hint is type(None):
            return value is None
        if origin in (Union, types.UnionType):
            return any(self(value, part) for part in inner)
        if hint in (int, float, str, bool):
            return isinstance(value, int | float if hint is float else hint) and (hint is bool or not isinstance(value, bool))
        if origin is tuple:
            if not isinstance(value, tuple):
                return False
            many = len(inner) == 2 and inner[1] is Ellipsis
            return self._all(value, inner[0]) if many else len(value) == len(inner) and all(map(self, value, inner))
        kind = hint if origin is None else origin
        if not isinstance(kind, type):
            return True
        if issubclass(kind, Mapping):
            return isinstance(value, Mapping) and (not inner or (self._all(value, inner[0]) and self._all(value.values(), inner[1])))
        if kind in (Sequence, Collection, Iterable):
            return isinstance(value, tuple | list | range | frozenset) and (not inner or self._all(value, inner[0]))
        return isinstance(value, kind) and (not inner or not isinstance(value, Collection) or self._all(value, inner[0]))

    def _all(self, values: Iterable[Any], hint: Any) -> bool:
        return hint is Any or all(self(value, hint) for value in values)
