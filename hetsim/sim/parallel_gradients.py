"""Compute simultaneous gradients in several processes."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import mmap
import os
import select
import signal
import struct
import sys
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from struct import Struct
from threading import Thread
from time import perf_counter
from typing import Any, NamedTuple, NoReturn
from weakref import ReferenceType, ref

import torch

from hetsim import effects as fx
from hetsim.effects import Batch
from hetsim.memory import available_bytes, gigabytes
from hetsim.sim.gradient_batching import Compute, Due, EarlyGradient, GradientBatcher
from hetsim.sim.rank_process import RankProcess
from hetsim.vector import Vector
from hetsim.workloads.task import Task

NUM_SLOTS = 64
"""The maximum number of requests in progress."""
REQUEST = Struct("6q")
"""A batch's rank, start, samples and pool, the place of its weights, and the place of its gradient."""
ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1}
"""Signals that end or stop a run. The run's main process ends the other processes."""
LOOK_MILLISECONDS = 500
"""The interval at which a forked process checks whether its parent has changed."""
PAGE = mmap.PAGESIZE
LEAST_ASKED, MOST_ASKED = 2, 12
"""The minimum and maximum number of a process's requests: one that it computes, and at least one to begin next."""
ASKED_SECONDS = 0.002
"""The target time of a process's requests, so that it is not idle before this process checks its results."""
HERE_SECONDS = 0.001
"""The time that this process computes before it checks for results."""
BEGIN_SECONDS = 1.0
"""The age of a run at which `auto` forks. Forking takes about 0.03 s, so no run loses more than 3 %."""
HANDING_OVER_SECONDS = 3e-5
"""The approximate time for passing one small gradient to another process."""
WINDOW_SECONDS, WINDOW_GRADIENTS = 0.05, 8
"""The minimum time and number of gradients over which `auto` measures the seconds of a gradient."""
NUM_WINDOWS = 5
"""The windows with several processes after which `auto` decides. The first one does not count, and the best of the others does."""
PAYS = 0.95
"""Several processes stay in use if a gradient takes at most this fraction of its time with one."""


# Another process


class SharedVectors:
    """Vectors like `like` in anonymous memory that forked processes share. It is freed when the last process ends.

    Args:
        like: a flat tensor on the CPU.
        count: the number of vectors.
    """

    def __init__(self, like: torch.Tensor, count: int) -> None:
        stride = -(-like.nbytes // PAGE) * PAGE
        memory = mmap.mmap(-1, count * stride)
        self.vectors = [torch.frombuffer(memory, dtype=like.dtype, count=len(like), offset=i * stride) for i in range(count)]


class Slots:
    """Requests and results in shared memory. Each one's slot is its number modulo NUM_SLOTS."""

    def __init__(self) -> None:
        self.requests = mmap.mmap(-1, REQUEST.size * NUM_SLOTS)
        self.losses = _shared_array(NUM_SLOTS, "d")
        self.computed = _shared_array(NUM_SLOTS, "q")
        self.num_results = _shared_array(1, "q")


def _shared_array(count: int, kind: str) -> Any:
    shared: Any = memoryview(mmap.mmap(-1, 8 * count))
    return shared.cast(kind)


@contextlib.contextmanager
def block_signals() -> Iterator[None]:
    """Within this context, no signal that ends a run reaches this process. Processes forked in it never receive such a signal."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class Result(NamedTuple):
    """The mean loss of a gradient, and whether it was computed."""

    loss: float
    computed: bool


class ForkedProcess:
    """A copy of this process that computes gradients in the order of the requests.

    It ends when this process ends, in any way. Make it within `block_signals`.
    """

    def __init__(self, compute: Compute, weights: SharedVectors, gradients: SharedVectors) -> None:
        self._slots = Slots()
        self._num_requests = self._num_read = 0
        self._requested, self._answered = os.eventfd(0), os.eventfd(0)
        life, self._life = os.pipe()  # closed when this process ends
        self._peers_life, peers_end = os.pipe()  # closed when the other ends
        self._poll = select.poll()
        for end in (self._answered, self._peers_life):
            self._poll.register(end, select.POLLIN)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()  # what is in a buffer would be written twice
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other threads of this process take no lock that a gradient needs
            main = os.getpid()
            self.pid = os.fork()
        if self.pid == 0:
            parents_ends = (self._life, self._peers_life)
            _serve(compute, weights.vectors, gradients.vectors, self._slots, self._requested, self._answered, life, main, parents_ends)
        os.close(life)
        os.close(peers_end)

    def request(self, *request: int) -> None:
        """Request a gradient: rank, start, samples and pool of its batch, the place of its weights, and the place of its gradient."""
        REQUEST.pack_into(self._slots.requests, self._num_requests % NUM_SLOTS * REQUEST.size, *request)
        self._num_requests += 1
        os.eventfd_write(self._requested, 1)

    @property
    def num_ready(self) -> int:
        """The number of results that can be read without waiting. It may be too low."""
        num_results: int = self._slots.num_results[0]
        return num_results - self._num_read

    @property
    def ended(self) -> bool:
        """Whether the process has ended by itself."""
        return any(end == self._peers_life for end, _ in self._poll.poll(0))

    def results(self) -> list[Result]:
        """Wait for results, and return them in the order of the requests. Returns at least one, or none if the process has ended."""
        if self.num_ready <= 0 and all(end != self._answered for end, _ in self._poll.poll()):
            return []
        first, slots = self._num_read, self._slots
        self._num_read += os.eventfd_read(self._answered)  # which also orders the accesses to memory
        numbers = (number % NUM_SLOTS for number in range(first, self._num_read))
        return [Result(slots.losses[slot], bool(slots.computed[slot])) for slot in numbers]

    def end(self) -> None:
        """End the process at once."""
        for end in (self._requested, self._answered, self._life, self._peers_life):
            os.close(end)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # a program around this one may have waited for it
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def _serve(
    compute: Compute, weights: list[Any], gradients: list[Any], slots: Slots, requested: int, answered: int, life: int, main: int,
    parents_ends: Iterable[int],
) -> NoReturn:  # fmt: skip
    """Answer requests until no process can send any."""
    try:
        for descriptor in parents_ends:
            os.close(descriptor)
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        gc.freeze()  # what the other process has must not be finalised here
        inherited = _own_streams()  # noqa: F841  # if it were deleted, Python would write what is in its buffers
        Thread(target=_leave_with, args=(life, main), daemon=True).start()
        num_requests = 0
        for i in itertools.count():
            while num_requests <= i:
                num_requests += os.eventfd_read(requested)
            slot = i % NUM_SLOTS
            rank, start, samples, pool, at, place = REQUEST.unpack_from(slots.requests, slot * REQUEST.size)
            slots.computed[slot] = 0
            with contextlib.suppress(Exception):  # the other process computes it then, and gets the same error
                gradient, loss = compute(rank, weights[at], Batch(start, samples, pool))
                if type(loss) is float and (gradient.shape, gradient.dtype) == (gradients[place].shape, gradients[place].dtype):
                    gradients[place].copy_(gradient)
                    slots.losses[slot], slots.computed[slot] = loss, 1
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            os.eventfd_write(answered, 1)
            slots.num_results[0] = i + 1
    finally:
        os._exit(0)


def _own_streams() -> list[Any]:
    """Write to the same files with empty buffers, because another thread may have printed since the flush. Returns the old streams."""
    inherited = [sys.stdout, sys.stderr]
    for name in ("stdout", "stderr"):
        with contextlib.suppress(Exception):
            stream = getattr(sys, name)
            options = {"encoding": stream.encoding, "errors": stream.errors, "closefd": False}
            setattr(sys, name, os.fdopen(stream.fileno(), "w", buffering=1, **options))
    return inherited


def _leave_with(life: int, main: int) -> None:
    """End with the process `main`, even if a process that it forked later keeps the other end of `life` open."""
    poll = select.poll()
    poll.register(life, select.POLLHUP)
    while not poll.poll(LOOK_MILLISECONDS) and os.getppid() == main:
        pass
    os._exit(0)


# Gradients in several processes


class Versions:
    """Versions of the weights in shared memory. Each is copied once for any number of gradients."""

    def __init__(self, shared: SharedVectors) -> None:
        self._vectors = shared.vectors
        self._places: dict[int, int] = {}  # by the id of a tensor
        self._held: list[tuple[int, ReferenceType[Vector]] | None] = [None] * len(self._vectors)
        self._num_users = [0] * len(self._vectors)
        self._idle = deque(range(len(self._vectors)))

    def take(self, at: Vector) -> int:
        """The place of these weights. They keep it until it is released as often as it was taken."""
        place = self._places.get(id(at))
        if place is not None and (held := self._held[place]) is not None and held[1]() is at:
            if not self._num_users[place]:
                self._idle.remove(place)
        else:
            place = self._idle.popleft()
            if (held := self._held[place]) is not None and self._places.get(held[0]) == place:
                del self._places[held[0]]
            self._vectors[place].copy_(at)
            self._held[place] = id(at), ref(at)
            self._places[id(at)] = place
        self._num_users[place] += 1
        return place

    def release(self, place: int) -> None:
        """Release a place after one gradient at its weights is computed."""
        self._num_users[place] -= 1
        if not self._num_users[place]:
            self._idle.append(place)


class Trial(NamedTuple):
    """A gradient that this process has computed. Other processes must compute the same bits."""

    rank: int
    at: Vector
    batch: fx.Batch
    gradient: Vector
    loss: float


@dataclass(eq=False)
class Helper:
    """Another process, its requests in order, and the number of requests so far."""

    process: ForkedProcess
    first_place: int
    """The first place of its gradients in the shared memory."""
    requests: deque[tuple[Due, int]] = field(default_factory=deque)
    """The requests, each with the place of its weights."""
    num_requests: int = 0


class ParallelGradients(GradientBatcher):
    """Computes gradients in `num_processes` processes, including this one, to the same bits as in one.

    The others are forked, so they have the same data, model and code. They begin a gradient when its node does, in virtual time. In the
    meantime, this process computes other gradients, and waits only if there are none. If a gradient fails elsewhere, this process computes
    it when it is due, so that the error is the same as with one process.
    """

    def __init__(self, task: Task, gradient: Compute, num_processes: int) -> None:
        super().__init__(task, self._compute_and_try)
        self._compute_one = gradient
        self._like = task.initial()
        self.num_processes = num_processes
        self._num_places = LEAST_ASKED if self._max_gradients == 1 else MOST_ASKED
        self._least_seconds = math.inf
        self._helpers: list[Helper] = []
        self._on_trial: list[Helper] = []
        """The processes whose first gradient is not compared yet."""
        self._num_before = 0
        """The gradients that this process computed while others were on trial."""
        self._trial: Trial | None = None
        """The gradient that the processes on trial have to compute."""
        self._helper_of: dict[int, Helper] = {}  # by number
        self._failed: dict[int, Due] = {}  # elsewhere; by number

    # Start and end

    def begin(self) -> None:
        """Fork the other processes. Each is used after it has computed the same bits as this one."""
        num_helpers = self.num_processes - 1
        num_places = num_helpers * self._num_places
        needed, available = (2 * num_places + 1) * self._like.nbytes, available_bytes()
        if available is not None and needed > available:
            self._give_up(f"the memory that they share would take {gigabytes(needed)} GB, and {gigabytes(available)} GB are available")
            return
        try:
            weights, self._gradients = SharedVectors(self._like, num_places + 1), SharedVectors(self._like, num_places)
            self._weights = Versions(weights)
            with block_signals():
                for i in range(num_helpers):
                    forked = ForkedProcess(self._compute_one, weights, self._gradients)
                    self._on_trial.append(Helper(forked, first_place=i * self._num_places))
        except OSError as error:
            self._give_up(f"they cannot be started ({os.strerror(error.errno or 0)})")

    def close(self) -> None:
        """End the other processes."""
        for helper in (*self._helpers, *self._on_trial):
            helper.process.end()
        self._helpers, self._on_trial, self._trial = [], [], None

    def _try(self, trial: Trial) -> None:
        """Let each process compute a gradient that this one has just computed after other gradients."""
        self._trial, batch = trial, trial.batch
        self._trial_place = self._weights.take(trial.at)
        for helper in self._on_trial:
            helper.process.request(trial.rank, batch.start, batch.samples, batch.pool, self._trial_place, helper.first_place)

    def _compare(self, trial: Trial) -> None:
        """Use the processes if all have computed the same bits. Otherwise end them."""
        for helper in self._on_trial:
            result = next(iter(helper.process.results()), None)
            if result is None or not result.computed:
                self._give_up("another process cannot compute them")
                return
            if not _same_bits(self._gradients.vectors[helper.first_place], trial.gradient) or _bits(result.loss) != _bits(trial.loss):
                self._give_up("they depend on which process computes them, so the workload's code or data have a state of their own")
                return
        self._weights.release(self._trial_place)
        self._helpers, self._on_trial, self._trial = self._on_trial, [], None
        self._most_asked = len(self._helpers) * min(self._num_places, max(LEAST_ASKED, round(ASKED_SECONDS / self._least_seconds)))
        self._most_here = min(max(1, self._max_gradients // 2), max(1, round(HERE_SECONDS / self._least_seconds)))
        self._max_kept = self._most_asked + self._max_gradients

    def _give_up(self, reason: str) -> None:
        """Continue with this process only."""
        self.close()
        warnings.warn(f"backend.processes={self.num_processes}: all gradients are computed in one process, as {reason}", stacklevel=2)

    # Gradients

    def expect(self, end: float, process: RankProcess, effect: fx.Gradient) -> int:
        number = super().expect(end, process, effect)
        if self._helpers:
            self._hand_out()
        return number

    def gradient(self, number: int) -> tuple[Vector, float]:
        if not self._helpers:
            return self._compute_alone(number)
        computed = self._computed
        if number not in computed:
            self._collect()
            if number not in computed:
                self._computed = computed = {key: early for key, early in computed.items() if not early.process.lost}
            while number not in computed:
                if number in self._failed:
                    return self._compute_failed(number)
                helper = self._helper_of.get(number)
                if helper is None:
                    self._compute_some(must=number)
                elif not (self._due and len(computed) < self._max_kept and self._compute_some()):
                    self._take(helper)
                self._collect()
        early = computed.pop(number)
        return early.gradient, early.loss

    def _compute_alone(self, number: int) -> tuple[Vector, float]:
        """Compute as with one process, until the others are in use."""
        if number in self._failed:
            return self._compute_failed(number)
        if self._trial is not None and all(helper.process.num_ready > 0 or helper.process.ended for helper in self._on_trial):
            self._compare(self._trial)
        return super().gradient(number)

    def _compute_failed(self, number: int) -> tuple[Vector, float]:
        """Compute a gradient here that failed elsewhere, or too early. Now its error counts."""
        _, _, process, effect = self._failed.pop(number)
        return self._compute_one(process.rank, effect.at, effect.batch)

    def _compute_and_try(self, rank: int, at: Vector, batch: fx.Batch) -> tuple[Vector, float]:
        """Compute a gradient with one process, and `_try` one. It is not the first one, so that the others have other earlier gradients."""
        start = perf_counter()
        gradient, loss = self._compute_one(rank, at, batch)
        self._least_seconds = min(self._least_seconds, perf_counter() - start)
        if self._on_trial and self._trial is None:
            if self._num_before:
                self._try(Trial(rank, at, batch, gradient, loss))
            self._num_before += 1
        return gradient, loss

    def _compute_some(self, must: int = -1) -> bool:
        """Compute a few of the next gradients here. Returns whether there was one. Only an error of the gradient `must` is raised."""
        due, remaining, computed_any = self._due, self._most_here, False
        while due and remaining:
            _, number, process, effect = gradient = heappop(due)
            if process.lost:
                continue
            computed_any = True
            remaining -= 1
            try:
                self._computed[number] = EarlyGradient(process, *self._compute_one(process.rank, effect.at, effect.batch))
            except Exception:
                if number == must:
                    raise
                self._failed[number] = gradient
        return computed_any

    def _hand_out(self) -> None:
        """Request the next gradients from the other processes, except this process's share."""
        due, helpers = self._due, self._helpers
        pending = len(due) + len(self._helper_of)
        share = min(max(-(-pending * len(helpers) // (len(helpers) + 1)), pending - self._most_here), self._most_asked)
        while due and len(self._helper_of) < share:
            gradient = heappop(due)
            if gradient[2].lost:
                continue
            helper = helpers[0] if len(helpers) == 1 else min(helpers, key=lambda candidate: len(candidate.requests))
            self._ask(helper, gradient)

    def _ask(self, helper: Helper, gradient: Due) -> None:
        _, number, process, effect = gradient
        batch, place = effect.batch, self._weights.take(effect.at)
        helper.requests.append((gradient, place))
        self._helper_of[number] = helper
        result_place = helper.first_place + helper.num_requests % self._num_places
        helper.process.request(process.rank, batch.start, batch.samples, batch.pool, place, result_place)
        helper.num_requests += 1

    def _collect(self) -> None:
        """Take the other processes' results."""
        for helper in self._helpers:
            if helper.process.num_ready > 0:
                self._take(helper)

    def _take(self, helper: Helper) -> None:
        """Take the results of a process, and wait if it has none."""
        results = helper.process.results()
        if not results:
            self._lose(helper)
            return
        first = helper.num_requests - len(helper.requests)
        for i, result in enumerate(results, first):
            due_gradient, place = helper.requests.popleft()
            _, number, process, _ = due_gradient
            self._weights.release(place)
            del self._helper_of[number]
            if not result.computed:
                self._failed[number] = due_gradient
            elif not process.lost:
                gradient = self._gradients.vectors[helper.first_place + i % self._num_places].clone()
                self._computed[number] = EarlyGradient(process, gradient, result.loss)
        self._hand_out()

    def _dismiss(self, helper: Helper) -> None:
        """End a process. The others compute its requests."""
        helper.process.end()
        self._helpers = [remaining for remaining in self._helpers if remaining is not helper]
        for gradient, place in helper.requests:
            self._weights.release(place)
            del self._helper_of[gradient[1]]
            heappush(self._due, gradient)
        helper.requests.clear()

    def _lose(self, helper: Helper) -> None:
        """Handle a process that has ended by itself."""
        self._dismiss(helper)
        warnings.warn(
            f"a process that computed gradients was killed, perhaps for lack of memory: {len(self._helpers) + 1} of {self.num_processes} "
            "compute them now, to the same results", stacklevel=2,
        )  # fmt: skip


class AutomaticGradients(ParallelGradients):
    """Begins with one process, and uses several if the run is long and they are faster.

    Its measurements change the duration of a run, but none of its numbers.
    """

    def begin(self) -> None:
        self._began = self._window_began = perf_counter()
        self._num_in_window = 0
        self._has_forked = self._has_decided = False
        self._alone_seconds = math.inf
        self._together_seconds: list[float] = []

    def gradient(self, number: int) -> tuple[Vector, float]:
        result = super().gradient(number)
        if not self._has_decided:
            self._num_in_window += 1
            now = perf_counter()
            seconds = now - self._window_began
            if seconds >= WINDOW_SECONDS and self._num_in_window >= WINDOW_GRADIENTS:
                self._end_window(now, seconds / self._num_in_window)
        return result

    def _end_window(self, now: float, seconds: float) -> None:
        """Fork or decide, after a window in which a gradient took these seconds."""
        if self._helpers:
            self._together_seconds.append(seconds)
            if len(self._together_seconds) == NUM_WINDOWS:
                self._has_decided = True
                if min(self._together_seconds[1:]) > PAYS * self._alone_seconds:
                    for helper in self._helpers:
                        self._dismiss(helper)
        elif not self._has_forked:
            self._alone_seconds = min(self._alone_seconds, seconds)
            if now - self._began >= BEGIN_SECONDS:
                self._has_forked = True
                remaining_seconds = max(0.0, self._alone_seconds - self._least_seconds) + HANDING_OVER_SECONDS
                self.num_processes = min(self.num_processes, 1 + math.ceil(self._least_seconds / remaining_seconds))
                super().begin()
        self._window_began, self._num_in_window = perf_counter(), 0

    def _give_up(self, reason: str) -> None:
        self.close()
        self._has_decided = True


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether all bits are equal."""
    return torch.equal(first.contiguous().view(torch.uint8), second.contiguous().view(torch.uint8))


def _bits(number: float) -> bytes:
    return struct.pack("<d", number)
