"""The interface of an admission, and the rule that applies every gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from hetsim.effects import Contribution


@dataclass(slots=True, unsafe_hash=True)
class Decision:
    """Apply the contributions in `apply` as one group, drop those in `drop`, and let the ranks in `release` take their next range."""

    apply: tuple[Contribution, ...] = ()
    drop: tuple[Contribution, ...] = ()
    release: tuple[int, ...] = ()


class Admission(ABC):
    """Decides what the server does when a gradient arrives or a worker leaves."""

    keeps_gradients: ClassVar[bool] = True
    """Whether its state may refer to a gradient after a decision. A class says so itself: its subclasses do not inherit `False`."""
    lets_gradients_be_late: ClassVar[bool] = True
    """Whether a gradient can be applied to a newer version than the version at which it was computed."""
    stops: ClassVar[bool] = False
    """Whether a new version can stop workers in the middle of a gradient (`gives_up` decides which)."""
    keeps_table: ClassVar[bool] = False
    """Whether its state contains a table `current` of the workers' mean gradients, which determines the server's step."""

    @abstractmethod
    def initial(self, num_workers: int) -> Any:
        """The state before the first gradient.

        Args:
            num_workers: N.

        Raises:
            ValueError: the rule cannot work with this number of workers.
        """

    def group_size(self, num_workers: int) -> int:
        """How many gradients make a version. With 1, the weight of a contribution only scales the step.

        Args:
            num_workers: N.
        """
        return 1

    @abstractmethod
    def arrived(self, state: Any, contribution: Contribution) -> tuple[Any, Decision]:
        """The state and the decision after a gradient has arrived.

        Args:
            state: the state of this rule.
            contribution: the gradient.
        """

    def gives_up(self, delay: int) -> bool:
        """Whether a worker is stopped. It then computes its range again, at the newest weights.

        Args:
            delay: the age of the worker's weights, in versions.
        """
        return False

    def worker_left(self, state: Any, rank: int) -> tuple[Any, Decision]:
        """The state and the decision after a worker has sent its last gradient. After the last worker, the rule applies all held gradients.

        Args:
            state: the state of this rule.
            rank: the worker.
        """
        return state, Decision()

    def worker_joined(self, state: Any, rank: int) -> Any:
        """The state after a worker that left or was lost returns.

        Args:
            state: the state of this rule.
            rank: the worker.
        """
        return state

    def resumed(self, state: Any, num_workers: int) -> Any:
        """The state after a restart, in which all workers take part again.

        Args:
            state: the state of this rule.
            num_workers: N.
        """
        return state

    def fair_share(self, group: Sequence[Contribution], batch_size: int, num_workers: int) -> float:
        """The samples of each contribution if the group's global batch were split equally.

        Args:
            group: the contributions that make a version.
            batch_size: B, the samples of a global batch.
            num_workers: N.
        """
        return batch_size / num_workers


@dataclass(frozen=True)
class EveryGradient(Admission):
    """Apply each gradient on arrival and release its worker: asynchronous SGD (Downpour)."""

    keeps_gradients = False

    def initial(self, num_workers: int) -> None:
        return None

    def arrived(self, state: None, contribution: Contribution) -> tuple[None, Decision]:
        return None, Decision((contribution,), (), (contribution.rank,))
