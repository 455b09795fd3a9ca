"""The time of a node's work: from its description, noise of its own random stream, and changes of its speed during the work."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import count, islice

from hetsim.cluster.distributions import GRADIENTS, JITTER, MIN_FACTOR, SERVICE, SHARING, SPELLS, Distribution
from hetsim.cluster.model import Cluster, NodeSpec, SlowSpells
from hetsim.errors import RunFailed
from hetsim.vector import Vector, nbytes

MAX_SPEED_CHANGES = 100_000
"""The maximum number of speed changes during a step, or a pause before it. Adding up more of them would take too long."""


TOO_MANY = (
    f"over {MAX_SPEED_CHANGES} changes of speed: make slow_spells' seconds_between and seconds_lasting, or slowdown_period_seconds, "
    "longer, or the other times shorter"
)
SHARING_WEIGHTS = (1e-3, 1e3)
"""The minimum and maximum weight. Sums and quotients of weights in this range are exact to many digits."""


class StepTimes:
    """The seconds of one node's gradients, in the order in which the node computes them."""

    __slots__ = ("factors", "node", "slowdown")

    def __init__(self, node: NodeSpec, *, seed: int, rank: int, stream: int = GRADIENTS) -> None:
        self.node = node.on_its_share
        self.slowdown = Slowdown(node, seed=seed, rank=rank) if node.slowdown or node.slow_spells else None
        self.factors = node.noise.draws(seed, rank, stream, least=MIN_FACTOR) if node.noise else None

    def skip(self, num_gradients: int) -> None:
        """Skip the gradients of an earlier run."""
        if self.factors is not None:
            next(islice(self.factors, num_gradients, num_gradients), None)

    def seconds(self, samples: int, start: float = 0.0) -> float:
        """The seconds of the next gradient, over `samples` samples, if it starts at second `start` of the run."""
        num_passes, rest = divmod(samples, self.node.micro_batch or samples or 1)
        seconds = num_passes * _pass(self.node, self.node.micro_batch or samples)
        seconds += _pass(self.node, rest) if rest or not samples else 0.0
        if self.factors is not None:
            seconds *= next(self.factors)
        seconds = seconds if self.slowdown is None else self.slowdown.stretch(seconds, start)
        return max(seconds, samples * self.node.loading)

    def update_seconds(self, start: float, *, local: bool = False) -> float:
        """The seconds of an optimizer step on the node, if it starts at second `start` of the run. `local`: of a local step."""
        seconds = self.node.update_seconds(local=local)
        return seconds if self.slowdown is None else self.slowdown.stretch(seconds, start)


def share_ready(node: NodeSpec, samples: int, ready: float) -> float:
    """Return the fraction of a gradient's seconds after which a bucket is complete.

    `ready` is this fraction for a gradient in a single pass. With a `micro_batch`, the last pass completes the buckets. A node that waits
    for its loader waits before it computes.
    """
    most, node = node.micro_batch or samples, node.on_its_share
    if samples <= most and not node.loading:
        return ready
    num_passes, rest = divmod(samples, most or 1)
    full, last = _pass(node, most), _pass(node, rest or most)
    total = max(num_passes * full + (last if rest else 0.0), samples * node.loading)
    return 1.0 - (1.0 - ready) * (last / total if total else 1.0)


def sizes_of_passes(node: NodeSpec, samples: int) -> set[int]:
    """The numbers of samples in the passes of a gradient over `samples` samples."""
    most = node.micro_batch
    return {samples} if most is None or samples <= most else {most, samples % most or most}


def _pass(node: NodeSpec, samples: int) -> float:
    """Return the seconds of a single pass over `samples`, before noise."""
    return interpolate(node.table, samples) if node.table else node.overhead_seconds + samples * node.seconds_per_sample


class ServiceTimes:
    """The seconds of a server's updates, in order. A `number` selects a local server, from 1; without it, the global server is meant."""

    def __init__(self, cluster: Cluster, *, seed: int, number: int = 0) -> None:
        self.server = cluster.server
        varies = cluster.server.seconds_per_byte or cluster.server.seconds_per_vector_operation
        self._always = None if varies else cluster.server.update_seconds(0)
        noise = cluster.server.noise
        self._factors = noise.draws(seed, number, SERVICE, least=MIN_FACTOR) if noise else None

    def skip(self, num_updates: int) -> None:
        """Skip the updates of an earlier run."""
        if self._factors is not None:
            next(islice(self._factors, num_updates, num_updates), None)

    def update_seconds(self, gradient: Vector, operations: int = 0) -> float:
        """The seconds of the next update, with a gradient of this size, made by so many operations on vectors."""
        seconds = self._always if self._always is not None else self.server.update_seconds(nbytes(gradient), operations)
        return seconds if self._factors is None else seconds * next(self._factors)


class MessageDraws:
    """Random numbers for the messages from one rank to another: one for each message, in order."""

    def __init__(self, law: Distribution | None, stream: int, cluster: Cluster, sender: int, receiver: int, *, seed: int) -> None:
        assert law is not None
        server = cluster.num_workers
        source, target = (0 if end == server else end + 1 for end in (sender, receiver))  # the server is 0 with any number of workers
        self._draws = law.draws(seed, source, stream, target)
        self.num_drawn = 0

    def skip(self, num_messages: int) -> None:
        """Skip the messages of an earlier run."""
        next(islice(self._draws, num_messages, num_messages), None)
        self.num_drawn += num_messages

    def next(self) -> float:
        """The number for the next message."""
        self.num_drawn += 1
        return next(self._draws)


class Jitter(MessageDraws):
    """The seconds that are added to the latency of each message."""

    def __init__(self, cluster: Cluster, sender: int, receiver: int, *, seed: int) -> None:
        super().__init__(cluster.network.jitter_seconds, JITTER, cluster, sender, receiver, seed=seed)


class SharingWeights(MessageDraws):
    """The weight of each message in shared links: a drawn number, limited to `SHARING_WEIGHTS`."""

    def __init__(self, cluster: Cluster, sender: int, receiver: int, *, seed: int) -> None:
        super().__init__(cluster.network.sharing_noise, SHARING, cluster, sender, receiver, seed=seed)

    def next(self) -> float:
        """The weight of the next message."""
        least, most = SHARING_WEIGHTS
        return min(max(super().next(), least), most)


def interpolate(table: tuple[tuple[int, float], ...], samples: int) -> float:
    """Linear between the measured points, constant below the first point, and extrapolated from the last two points."""
    at = bisect_right(table, samples, key=lambda point: point[0])
    if at == 0 or len(table) == 1:
        return table[0][1]
    measured, seconds = table[at - 1]
    (smaller, low), (larger, high) = table[min(at, len(table) - 1) - 1], table[min(at, len(table) - 1)]
    return seconds + (samples - measured) * ((high - low) / (larger - smaller))


class Slowdown:
    """A piecewise constant factor on the seconds of work, from second 0 on: slow spells, a recorded trace, or their product."""

    def __init__(self, node: NodeSpec, *, seed: int, rank: int) -> None:
        recorded = _recorded_factors(node.slowdown or ((0.0, 1.0),), node.slowdown_period_seconds)
        spells = iter([(0.0, 1.0)]) if node.slow_spells is None else _spell_factors(node.slow_spells, seed, rank)
        self._coming = _product(recorded, spells)
        self._starts: list[float] = []
        self._factors: list[float] = []
        self._more()

    def stretch(self, seconds: float, start: float) -> float:
        """The time of work from `start` on. `seconds` is its time at full speed. At each moment, work proceeds at the rate 1/factor."""
        last = len(self._starts) + MAX_SPEED_CHANGES
        while self._starts[-1] <= start and self._more():
            if len(self._starts) > last:
                raise RunFailed(f"a pause before a step has {TOO_MANY}")
        at = bisect_right(self._starts, start) - 1
        took, now, last = 0.0, start, at + MAX_SPEED_CHANGES
        while True:
            if at > last:
                raise RunFailed(f"one step has {TOO_MANY}")
            if at + 1 == len(self._starts) and not self._more():
                return took + seconds * self._factors[at]
            piece, factor = self._starts[at + 1] - now, self._factors[at]
            if seconds * factor <= piece:
                return took + seconds * factor
            took += piece
            seconds -= piece / factor
            at, now = at + 1, self._starts[at + 1]

    def _more(self) -> bool:
        piece = next(self._coming, None)
        if piece is None:
            return False
        self._starts.append(piece[0])
        self._factors.append(piece[1])
        return True


def _recorded_factors(factors: Sequence[tuple[float, float]], period: float | None) -> Iterator[tuple[float, float]]:
    """Pairs (second, factor): each factor holds from its second on. With a period, the factors repeat."""
    for turn in count():
        for second, factor in factors:
            yield turn * (period or 0.0) + second, factor
        if period is None:
            return


def _spell_factors(spells: SlowSpells, seed: int, rank: int) -> Iterator[tuple[float, float]]:
    """Pairs (second, factor) of alternating fast and slow spells: each factor holds from its second on."""
    between = spells.seconds_between.draws(seed, rank, SPELLS, 0)
    lasting = spells.seconds_lasting.draws(seed, rank, SPELLS, 1)
    now = 0.0
    while True:
        yield now, 1.0
        now += next(between)
        yield now, spells.factor
        now += next(lasting)


def _product(first: Iterator[tuple[float, float]], second: Iterator[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """The product of two piecewise constant factors, which both begin at 0."""
    (_, a), (_, b) = next(first), next(second)
    yield 0.0, a * b
    next_a, next_b = next(first, None), next(second, None)
    while next_a is not None or next_b is not None:
        if next_b is None or (next_a is not None and next_a[0] <= next_b[0]):
            assert next_a is not None
            now, a = next_a
            next_a = next(first, None)
        else:
            now, b = next_b
            next_b = next(second, None)
        yield now, a * b
