"""The measurements on real machines. They are programs of effects, as methods are, so the same code computes and moves bytes.

Times are wall-clock seconds and CPU-seconds, which count only while a thread runs. Barriers separate the phases, so that workers can be
measured alone or at the same time.
"""

from __future__ import annotations

import os
import random
import threading
import time
from abc import abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeVar

from hetsim.calibration.accounts import PROGRAM, Cost, RoundCosts, account_rounds
from hetsim.calibration.readings import IN_STEP, OVERLAPPED, WHOLE, RankReadings, Reading
from hetsim.coordination.base import Coordination
from hetsim.coordination.local_steps import LocalSteps
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import AllReduce, Batch, Commit, Contribution, Effect, Gather, Gradient, LocalUpdate, Node, Program, Update
from hetsim.policies.admission import Barrier
from hetsim.policies.allocation import Allocation, proportional
from hetsim.policies.compensation import DelayCompensation
from hetsim.vector import Vector


class SplitState(NamedTuple):
    """How often the split has changed, and the arguments of `initial`."""

    times: int
    num_workers: int
    batch_size: int
    max_samples: Sequence[int] | None


@dataclass(frozen=True)
class ChangingSplit(Allocation):
    """Each of several workers takes about half to twice an equal share, at random."""

    def initial(self, num_workers: int, batch_size: int, max_samples: Sequence[int] | None = None) -> SplitState:
        """No split has been made yet."""
        return SplitState(0, num_workers, batch_size, max_samples)

    def shares(self, state: SplitState) -> tuple[int, ...]:
        """Drawn by the number of changes, so all ranks draw the same."""
        chance = random.Random(state.times)
        weights = [1.0 + chance.random() for _ in range(state.num_workers)]
        return proportional(weights, state.batch_size, max_samples=state.max_samples)

    def asks(self, state: SplitState, epoch: int) -> bool:
        """Always, as methods whose split follows the timings do."""
        return True

    def observe(self, state: SplitState, timings: Sequence[Contribution], epoch: int = 0) -> SplitState:
        """The next split is another one."""
        return state._replace(times=state.times + 1)


STAT = Path("/proc/stat")
TASKS = Path("/proc/self/task")
PER_THREAD = 6
"""The bits of a clock's number that select the CPU time of one thread, as its scheduler counts it."""
BUSY = (0, 1, 2, 5, 6)
"""The columns of busy time in the first line: user, nice, system, interrupts, and soft interrupts."""
INTERRUPTS = (5, 6)
"""The columns of interrupts, which move packets."""


class Meter(NamedTuple):
    """Clocks that are read together: seconds, and CPU-seconds of this thread, the process, the machine, and its interrupts."""

    wall: float
    thread: float
    process: float
    machine: float
    interrupts: float

    @classmethod
    def read(cls, threads: Sequence[int] = ()) -> Meter:
        """Read the clocks now. `threads` are the clocks of the process's threads that count; none: all of them."""
        return cls(time.perf_counter(), time.thread_time(), process_seconds(threads), *machine_seconds())

    def since(self, earlier: Meter) -> Meter:
        """The differences of all clocks."""
        return Meter(*(now - then for now, then in zip(self, earlier, strict=True)))


def machine_seconds() -> tuple[float, float]:
    """The CPU-seconds of all cores since the start, to about 10 ms per core, and the part in interrupts; 0 if they are unknown."""
    try:
        with STAT.open(encoding="ascii") as file:
            columns = [int(column) for column in file.readline().split()[1:]]
        ticks = os.sysconf("SC_CLK_TCK")
        return sum(columns[place] for place in BUSY) / ticks, sum(columns[place] for place in INTERRUPTS) / ticks
    except (OSError, ValueError, IndexError):
        return 0.0, 0.0


def clocks_of_working_threads() -> list[int]:
    """The clocks, for `time.clock_gettime`, of this process's threads without its OpenMP threads. Empty if it has none, and outside Linux.

    OpenMP threads have no name from Python or gloo. They compute for the thread that called them, and then spin for some milliseconds.
    """
    named = {os.getpid(), *(thread.native_id for thread in threading.enumerate())}  # after a fork, Python knows its parent's main thread
    try:
        name = (TASKS / str(os.getpid()) / "comm").read_bytes()
        spins = {int(task.name): int(task.name) not in named and (task / "comm").read_bytes() == name for task in TASKS.iterdir()}
    except OSError:
        return []
    return [~thread << 3 | PER_THREAD for thread, does in spins.items() if not does] if any(spins.values()) else []


def process_seconds(threads: Sequence[int]) -> float:
    """The CPU-seconds of the threads with these clocks; of the whole process if there are none.

    For threads that run on other cores, the process's clock lags by up to one tick of the scheduler, some milliseconds. A thread's does
    not, so the difference of both is not the work of the others.
    """
    return sum(map(cpu_seconds, threads)) if threads else time.process_time()


def cpu_seconds(clock: int) -> float:
    """The CPU-seconds of the thread with this clock; 0 after the thread's end."""
    try:
        return time.clock_gettime(clock)
    except OSError:
        return 0.0


T = TypeVar("T")
FITTED = (0.125, 0.25, 0.5, 1.0, 2.0)
"""The batch sizes to which a node's times are fitted, relative to the mean share."""
HELD_OUT = (0.35, 0.7, 1.4)
"""The held-out batch sizes, on which the fit is tested."""
PARTS_OF_MODEL = (256, 16, 4, 1)
"""The sizes of messages: the size of the weights divided by these numbers."""
MIN_ROUNDS = 4
MIN_AT_ONCE = 16
NUM_UPDATES = 50
PERIOD = 4
"""The local steps of a round of local SGD."""
MOST_UPDATES = 10**9
"""The version at which a calibration ends."""
CORRECTION = DelayCompensation(strength=1.0)
"""The correction by which a server's operations on vectors are measured."""
NUM_READINGS = 4
"""The number of consecutive readings of messages and all-reduces of one size. Their differences show the accuracy of a mean."""
PAUSES = (0.003, 0.01, 0.03, 0.1)
"""The pauses in seconds after which gradients are measured. Longer pauses leave colder caches."""


@dataclass(frozen=True, kw_only=True)
class Measurement(Coordination):
    """Every rank measures its computation and communication, and the leader writes all measurements to `output`.

    Each phase lasts at least `seconds`. `facts()` returns the facts about each rank's process as numbers.
    """

    takes_local_steps: ClassVar[bool] = True
    output: Path
    seconds: float
    facts: Callable[[], Sequence[float]]
    background: list[Meter] = field(default_factory=list)
    """The machine's background work while all ranks rest: at the beginning, and before messages are measured."""
    at_once: Sequence[int] = ()
    """The workers whose messages are measured while they share links. All messages begin at once."""
    states: list[State] = field(default_factory=list)
    """The last committed states of the methods that this rank has run."""
    threads: list[int] = field(default_factory=list)
    """The clocks of this process's threads, if others spin while they wait for the computing thread, whose CPU time is no work."""
    computes: bool = True
    """Whether gradients are measured, and not only communication and updates."""
    by_wall: Sequence[bool]
    """For each rank, whether several CPU threads compute its gradients and updates. The wall clock is then used."""

    def program(self, node: Node, plan: Plan, state: State) -> Program[None]:
        """Measure, share all measurements, and commit once, as every run does."""
        readings: list[Reading] = []
        yield from Gather(0.0)
        yield from self.rest()
        for phase in self.phases(node, plan, state, readings):
            yield from Gather(0.0)
            self.threads[:] = clocks_of_working_threads()
            yield from phase
        yield from Gather(0.0)
        shared = yield from self.share_readings(node, state.weights, readings)
        if node.rank == (node.server if self.needs_server else 0):
            self.output.write_text(shared.as_json())
        if not self.needs_server or node.rank == node.server:
            yield from Commit(MOST_UPDATES, [state, *self.states][-1].evolve(version=MOST_UPDATES))

    @abstractmethod
    def phases(self, node: Node, plan: Plan, state: State, readings: list[Reading]) -> Iterator[Program[None]]:
        """The phases of a rank. All ranks have equally many."""

    def rest(self) -> Program[None]:
        """Measure the work of other programs."""
        start = self.now()
        time.sleep(min(0.5, self.seconds / 2))
        self.background.append(self.now().since(start))
        yield from ()

    def now(self) -> Meter:
        """The clocks of this rank."""
        return Meter.read(self.threads)

    def work(self, rank: int, took: Cost) -> float:
        """The CPU-seconds of a rank's computation."""
        return took.wall if self.by_wall[rank] else took.thread

    def measure(self, node: Node, effect: Effect[T] | Program[T], kind: str, samples: int = 0) -> Program[tuple[Reading, T]]:
        """Compute, and return the costs and the answer. It reads few clocks, because the system's files would cool the caches."""
        wall, thread = time.perf_counter(), time.thread_time()
        answer = yield from effect
        took = Cost(time.perf_counter() - wall, time.thread_time() - thread)
        return Reading(kind, samples, took.wall, self.work(node.rank, took)), answer

    def gradient(self, node: Node, weights: Vector, batch: Batch, kind: str) -> Program[tuple[Reading, Vector]]:
        """Compute one gradient, and return its costs and itself."""
        reading, computed = yield from self.measure(node, Gradient(weights, batch, 0), kind, batch.samples)
        return reading, computed.gradient

    def steps(self, node: Node, weights: Vector, sizes: Sequence[int], readings: list[Reading], kind: str) -> Program[None]:
        """Gradients of all these sizes in turns, in a different order each time. A local update follows each one."""
        for samples in sizes:  # libraries prepare kernels
            yield from Gradient(weights, Batch(0, samples), 0)
        chance, position, rounds = random.Random(0), 0, 0
        began = time.perf_counter()
        while rounds < MIN_ROUNDS or time.perf_counter() - began < self.seconds:
            for samples in chance.sample(list(sizes), len(sizes)):
                took, gradient = yield from self.gradient(node, weights, Batch(position, samples), kind)
                step, _ = yield from self.measure(node, LocalUpdate(weights, gradient, 0, 0, in_place=True), "local update")
                readings += [took, step]
                position += samples
            rounds += 1

    def gradients(self, node: Node, plan: Plan, weights: Vector, readings: list[Reading], busy: Sequence[int]) -> Iterator[Program[None]]:
        """Phases of gradients: of each worker alone, after pauses, and of the first K workers at the same time, for each K in `busy`."""
        computes = node.rank < node.num_workers
        usual, sizes = (sizes_of(plan, node.rank, multiples) if computes else [] for multiples in ((1.0,), (*FITTED, *HELD_OUT)))
        for rank in range(node.num_workers):
            yield self.steps(node, weights, sizes, readings, "alone") if rank == node.rank else idle_phase()
        yield self.cold(node, weights, usual[0], readings) if computes else idle_phase()
        for num in busy:
            yield self.steps(node, weights, usual, readings, f"beside {num}") if node.rank < num else idle_phase()

    def cold(self, node: Node, weights: Vector, samples: int, readings: list[Reading]) -> Program[None]:
        """A gradient right after another, and after each pause, in a different order each time, while other workers do the same."""
        chance, position, rounds = random.Random(0), 0, 0
        began = time.perf_counter()
        while rounds < MIN_ROUNDS or time.perf_counter() - began < self.seconds:
            for pause in chance.sample((0.0, *PAUSES), 1 + len(PAUSES)):
                if pause:
                    time.sleep(pause)
                else:
                    yield from Gradient(weights, Batch(position, samples), 0)
                took, _ = yield from self.gradient(node, weights, Batch(position, samples), "cold")
                readings.append(took._replace(size=round(1e6 * pause)))
                position += samples
            rounds += 1

    def mean_reading(self, kind: str, size: int, took: Meter, count: int) -> Reading:
        """The costs of one message or all-reduce, as the mean of `count`."""
        of_machine, interrupts = (
            now - took.wall * min(per_second) for now, per_second in (
                (took.machine, [idle.machine / idle.wall for idle in self.background]),
                (took.interrupts, [idle.interrupts / idle.wall for idle in self.background]),
            )
        )  # fmt: skip
        return Reading(kind, size, *(total / count for total in (took.wall, took.process, of_machine, took.thread, max(0.0, interrupts))))

    def all_reduces(self, value: Vector, readings: list[Reading]) -> Program[None]:
        """Consecutive all-reduces in several readings. The first ones determine how many all ranks have time for."""
        times = 5
        for kind in ("", *["all_reduce"] * NUM_READINGS):
            start = self.now()
            for _ in range(times):
                yield from AllReduce(value)
            took = self.now().since(start)
            if kind:
                readings.append(self.mean_reading(kind, value.nbytes, took, times))
            else:
                longest = max((yield from Gather(took.wall))) / times
                times = max(5, min(1000, int(self.seconds / len(PARTS_OF_MODEL) / longest)) // NUM_READINGS)

    def run_in_training(
        self, node: Node, plan: Plan, state: State, method: Coordination, kind: str, readings: list[Reading], until: Callable[[], bool]
    ) -> Program[None]:
        """Run a method's program, and read its parts. The first round is not read.

        The reading of an exchange has the microseconds of the gradient before it as size, and all CPU-seconds of the process that are of
        no other part. Those of a server are the means of the exchanges for one update.
        """
        previous: list[float] = []
        """The seconds of the last gradient."""

        def over(costs: RoundCosts, samples: int) -> None:
            cost = defaultdict(Cost, costs)
            program, update, commit, gradient = cost[PROGRAM], cost["Update"], cost["Commit"], cost["Gradient"]
            if node.rank == node.server:
                if previous:
                    readings.append(Reading("update in training", 0, update.wall, self.work(node.rank, update)))
                    exchange, num = program.plus(commit).plus(cost["Receive"]).plus(cost["Send"]), max(1, cost["Receive"].num)
                    readings.append(
                        Reading(kind, 0, *(seconds / num for seconds in (exchange.wall, exchange.process, 0.0, exchange.thread)))
                    )
            elif previous:
                moved = [part for name, part in costs.items() if name in ("AllReduce", "Send", "Receive")]
                others = gradient.process + update.process + commit.process + program.thread
                rest = sum(part.process for part in costs.values()) - others
                wall, thread = sum(part.wall for part in moved), sum(part.thread for part in moved)
                readings.append(Reading(kind, round(1e6 * previous[-1]), wall, max(thread, rest), thread_seconds=thread))
                if commit.num:
                    readings.append(Reading("update in training", 0, update.wall, self.work(node.rank, update)))
                    readings.append(Reading("agreement", 0, commit.wall, commit.process, thread_seconds=commit.thread))
                readings.append(Reading(PROGRAM, 0, program.wall, program.thread))
                if kind == IN_STEP:
                    readings.append(round_reading(WHOLE, costs))
            if gradient.num:
                readings.append(Reading("in training", samples, gradient.wall, self.work(node.rank, gradient)))
            previous[:] = [gradient.wall]

        yield from self.run(node, plan, state, method, until, over)

    def run_local_sgd(self, node: Node, plan: Plan, state: State, readings: list[Reading], until: Callable[[], bool]) -> Program[None]:
        """Run local SGD, and read gradients right after others, and local steps, which include the program's own work."""

        def over(costs: RoundCosts, samples: int) -> None:
            if costs.keys() == {PROGRAM, "LocalUpdate", "Gradient"}:
                gradient, step = costs["Gradient"], costs["LocalUpdate"].plus(costs[PROGRAM])
                readings.append(Reading(f"beside {node.num_workers}", samples, gradient.wall, self.work(node.rank, gradient)))
                readings.append(Reading("local step", 0, step.wall, self.work(node.rank, step)))

        yield from self.run(node, plan, state, LocalSteps(admission=Barrier(), period=PERIOD), until, over)

    def run_overlapped(
        self, node: Node, plan: Plan, state: State, method: Coordination, readings: list[Reading], until: Callable[[], bool]
    ) -> Program[None]:
        """Run a method that exchanges beside the next gradient, and read its rounds but the first one."""
        rounds: list[Reading] = []
        yield from self.run(node, plan, state, method, until, lambda costs, _: rounds.append(round_reading(OVERLAPPED, costs)))
        readings += rounds[1:] if node.rank != node.server else []

    def run_changing_split(
        self, node: Node, plan: Plan, state: State, method: Coordination, sizes: set[int],
        readings: list[Reading], until: Callable[[], bool],
    ) -> Program[None]:  # fmt: skip
        """Run a method whose split changes. Read its gathers of timings, and the first gradient of each size that is not known.

        Libraries prepare kernels in it.
        """

        def over(costs: RoundCosts, samples: int) -> None:
            if gather := costs.get("Gather"):
                readings.append(Reading("gather", 0, gather.wall, gather.process, thread_seconds=gather.thread))
            if "Gradient" in costs and samples not in sizes:
                sizes.add(samples)
                readings.append(Reading("first", samples, costs["Gradient"].wall, self.work(node.rank, costs["Gradient"])))

        yield from self.run(node, plan, state, method, until, over)

    def run(
        self, node: Node, plan: Plan, state: State, method: Coordination, until: Callable[[], bool], over: Callable[[RoundCosts, int], None]
    ) -> Program[None]:
        """Run a method's program from the last of `states`, or from `state`. `until` and `over` are as in `accounted`."""
        last = [state, *self.states][-1]
        progress = {"version": last.version, "next_sample": last.next_sample, "num_samples": last.num_samples}
        program = method.program(Node(node.rank, node.num_workers), plan, method.initial(plan, last.weights).evolve(**progress))
        self.states[:] = [
            (yield from account_rounds(program, process=partial(process_seconds, self.threads), until=until, over=over)) or last
        ]

    def updates(self, node: Node, weights: Vector, readings: list[Reading]) -> Program[None]:
        """Take optimizer steps. A server also takes some along corrected gradients of older weights, as many as workers hold."""
        held = deque([weights], maxlen=node.num_workers)
        for _ in range(NUM_UPDATES):
            took, _ = yield from self.measure(node, Update(weights, weights * 1e-6), "update")
            readings.append(took)
            if node.rank == node.server:
                corrected = corrected_update(held[-1], weights * 1e-6, used=held[0])
                took, newest = yield from self.measure(node, corrected, "corrected update")
                readings.append(took)
                held.append(newest)

    def share_readings(self, node: Node, weights: Vector, readings: Sequence[Reading]) -> Program[RankReadings]:
        """Share the measurements and facts of all ranks with every rank."""
        facts = []
        for fact in self.facts():
            facts.append((yield from Gather(fact)))
        counts = yield from Gather(float(len(readings)))
        first, width = int(sum(counts[: node.rank])), len(Reading._fields)
        table = weights.new_zeros((int(sum(counts)) * width,)).double()
        for place, reading in enumerate(readings, first):
            for column, number in enumerate(reading.as_numbers()):
                table[place * width + column] = number
        numbers = (yield from AllReduce(table)).tolist()
        rows = [Reading.of_numbers(numbers[at : at + width]) for at in range(0, len(numbers), width)]
        by_rank, at = [], 0
        for number in map(int, counts):
            by_rank.append(rows[at : at + number])
            at += number
        return RankReadings(by_rank, [[fact[rank] for fact in facts] for rank in range(len(counts))], len(weights))


def corrected_update(weights: Vector, gradient: Vector, *, used: Vector) -> Program[Vector]:
    """An optimizer step along a gradient at the weights `used`, which is corrected for its delay."""
    _, total = CORRECTION.correct(None, Contribution(0, Batch(0, 1), 0, 0.0, 0.0, gradient=gradient, used=used), weights)
    return (yield from Update(weights, total))


def round_reading(kind: str, costs: RoundCosts) -> Reading:
    """The reading of a round without its local steps."""
    counted = [cost for name, cost in costs.items() if name != "LocalUpdate"]
    return Reading(kind, 0, sum(cost.wall for cost in counted), sum(cost.process for cost in counted))


def true_from_call(count: int) -> Callable[[], bool]:
    """A function that is true from its call of this number on."""
    calls = iter(range(1, count))
    return lambda: next(calls, None) is None


def idle_phase() -> Program[None]:
    """A rank's program in a phase of other ranks: nothing."""
    yield from ()


def group_sizes(num_workers: int) -> list[int]:
    """The numbers of workers that are measured at once: 2, 4, 8 … and all."""
    return sorted({min(num_workers, 2**power) for power in range(1, num_workers.bit_length() + 1)} - {1})


def known_sizes(plan: Plan, rank: int) -> set[int]:
    """The batch sizes of a worker's gradients in the phases with an equal split."""
    return set(sizes_of(plan, rank, (*FITTED, *HELD_OUT)))


def sizes_of(plan: Plan, rank: int, multiples: Sequence[float]) -> list[int]:
    """Batch sizes of these multiples of the mean share, limited by the worker's memory."""
    share = plan.batch_size / plan.num_workers
    most = plan.batch_size if plan.max_samples is None else min(plan.batch_size, plan.max_samples[rank])
    return sorted({min(most, max(1, round(multiple * share))) for multiple in multiples})
