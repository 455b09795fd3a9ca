"""Resume from a checkpoint. Its contents are checked against the run that its config describes, before any of them is used."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hetsim.checkpoints.file import REMEDY, classes_of, read
from hetsim.checkpoints.rows import adopt
from hetsim.coordination.bookkeeping.outstanding import Pushes
from hetsim.coordination.bookkeeping.pools import Cursors
from hetsim.coordination.bookkeeping.timings import UnreportedTimings
from hetsim.coordination.state import State
from hetsim.plain import UnknownClass, Unreadable, VectorType, fits, from_plain, hints
from hetsim.runtime.experiment import Experiment, Optimizers
from hetsim.runtime.rank import Checkpoint, fragment_memories
from hetsim.runtime.recording.curve import Point
from hetsim.runtime.recording.metrics import PER_WORKER, SUMMED, TOTALS
from hetsim.runtime.recording.trace import Trace
from hetsim.vector import Phantom, piece, zeros_like
from hetsim.workloads.task import Task

OWN = {"unreported": UnreportedTimings, "compression": Pushes}
METHOD = re.compile(r"^method: ([\w.+-]{1,100})$", re.MULTILINE)
"""The line of a config that names the method."""
MAX_LETTERS = 200
"""The maximum length of a text in an error."""
PROGRESS: dict[str, Any] = {
    "applied": dict[str, Any],
    "curve": dict[str, Any],
    "divergence": tuple[str | None, int | None, float | None, int],
    "profile_seconds": float,
    "first_sample": int,
    "activity": tuple[dict[str, Any], ...],
    "trace": tuple[str, ...],
}
APPLIED: dict[str, Any] = {
    **{name: tuple[kind, ...] for name, kind in PER_WORKER.items()},  # type: ignore[valid-type]
    "by_staleness": dict[int, int],
    "rounds": tuple[tuple[tuple[int, ...], int, int], ...],
    **TOTALS,
}
CURVE: dict[str, Any] = {
    "points": tuple[Point, ...],
    "unevaluated": tuple[tuple[float, int, int, VectorType], ...],
    "multiples": tuple[float, float],
    "newest": int,
    "best": tuple[float, VectorType] | None,
}
ACTIVITY: dict[str, Any] = dict.fromkeys(SUMMED, float) | {"recent": tuple[tuple[str, float, float, int, int], ...]}
INTERVALS = ("compute_seconds", "update_seconds", "down_seconds")


def load(path: Path, experiment: Experiment, task: Task, optimizers: Optimizers) -> Checkpoint:
    """The checkpoint in a file, for this experiment. Raises ValueError if it is invalid or belongs to another run."""
    entries, tensors = read(path)
    weights = task.initial()
    is_vector = partial(_is_like, weights)
    try:
        placed = {name: task.device.place(tensor) if tensor.ndim else tensor for name, tensor in tensors.items()}
        checkpoint: Checkpoint = from_plain(
            Checkpoint,
            entries["checkpoint"],
            tensors=placed,
            classes=classes_of(experiment),
            check=partial(_check_fields, is_vector=is_vector),
        )
        _check_weights(path, checkpoint.state.weights, weights)
        _check_ranks(checkpoint, experiment)
        _check_progress(checkpoint.progress, is_vector)
        if len(checkpoint.ranks) == experiment.num_ranks:
            _check_policies(checkpoint.state, experiment, task)
        _check_memories(checkpoint, task, optimizers)
    except RecursionError:
        raise ValueError(f"{path} is not a complete checkpoint (it is nested too deeply): {REMEDY}") from None
    except UnknownClass as error:
        methods = _methods(entries["config"], experiment.method)
        raise ValueError(f"{path} is {methods} ({error}): resume it with the method that it was made with") from None
    except Unreadable as error:
        raise ValueError(f"{path} is not a checkpoint that this run can resume from ({error}): {REMEDY}") from None
    return checkpoint


def _methods(config: str, method: str) -> str:
    """The method of a checkpoint's run and that of this run, for a sentence. Their policies may differ if their names do not."""
    saved = METHOD.search(config)
    return f"of method={saved[1]}, and this run of method={method}" if saved and saved[1] != method else "of another method than this run's"


def clock_of(path: Path) -> float:
    """The run's clock at the checkpoint in a file. Raises ValueError if the file does not contain it."""
    try:
        seconds = from_plain(tuple[float, ...], read(path)[0]["checkpoint"]["object"][1]["seconds"])
        return float(min(seconds, default=0.0))
    except (Unreadable, TypeError, ValueError, LookupError):
        raise ValueError(f"{path} is not a checkpoint that this run can resume from (it does not say when): {REMEDY}") from None


def check_budget(path: Path, checkpoint: Checkpoint, experiment: Experiment, task: Task) -> None:
    """Raise ValueError for a budget that the run has already reached."""
    state, seconds = checkpoint.state, max(checkpoint.seconds)
    budget = reached_budget(experiment, state, seconds, task.num_samples)
    if budget is not None:
        raise ValueError(
            f"{path} is at version {state.version}, after {state.num_samples} samples and {seconds:.6g} s, where {budget} has been "
            "reached: type a larger budget to resume the run, or remove its checkpoints to begin it anew"
        )


def reached_budget(experiment: Experiment, state: State, seconds: float, num_samples: int) -> str | None:
    """The budget that a run has reached at this version and time, by its config key; None if it can continue."""
    budget, positions = experiment.budget, experiment.budget.num_positions(num_samples)
    num_applied = state.next_sample - sum(batch.samples for batch in state.outstanding)
    if positions is not None and num_applied >= positions:
        return f"budget.epochs={budget.epochs:g}"
    if not budget.allows(state.version, seconds):
        return f"budget.updates={budget.updates}" if state.version >= (budget.updates or math.inf) else f"budget.seconds={budget.seconds}"
    if positions is not None and state.next_sample > positions:
        return f"budget.epochs={budget.epochs:g}"
    return None


def continue_trace(trace: Trace, path: Path, checkpoint: Checkpoint, experiment: Experiment) -> None:
    """Begin a trace with the run's rows up to its checkpoint. With another number of workers, it begins empty at the checkpoint."""
    if len(checkpoint.ranks) != experiment.num_ranks:
        return
    adopt(trace, path.parent.parent, checkpoint.progress["trace"], seconds=checkpoint.seconds, version=checkpoint.state.version)


def _is_like(weights: Any, value: Any) -> bool:
    """Whether a value is a vector with the size and kind of the weights."""
    if isinstance(weights, Phantom):
        return bool(value == weights)
    return type(value) is type(weights) and value.shape == weights.shape and value.dtype == weights.dtype


def _check_fields(part: Any, *, is_vector: Callable[[Any], bool]) -> None:
    """Raise Unreadable if a field of an object has another type, or a number that hetsim never writes."""
    for name, hint in hints(part.__class__).items():
        if isinstance(part, State) and name == "weights":
            continue  # another model has a sentence of its own
        value: Any = getattr(part, name, None)
        if not fits(value, hint, is_vector):
            raise Unreadable(f"the {name} of its {type(part).__name__} is of another kind or size")
        if isinstance(value, int) and value < 0 and name != "receiver":
            raise Unreadable(f"the {name} of its {type(part).__name__} is below 0")
        if hint is float and not math.isfinite(value) and name != "loss":
            raise Unreadable(f"the {name} of its {type(part).__name__} is not a finite number")
    if isinstance(part, Cursors) and min(part.of, default=0) < 0:
        raise Unreadable("a cursor of its Cursors is below 0")


def _check_weights(path: Path, saved: Any, weights: Any) -> None:
    """Raise ValueError for the weights of another model."""
    if _is_like(weights, saved):
        return
    sizes = [f"{_numbers(vector)}" for vector in (saved, weights)]
    raise ValueError(
        f"{path} is of another model: it has weights of {sizes[0]}, and this workload of {sizes[1]}: resume it with the model and the data "
        "that it was made with"
    )


def _numbers(vector: Any) -> str:
    if isinstance(vector, Phantom):
        return f"{vector.nbytes} bytes without numbers"
    shape, dtype = getattr(vector, "shape", None), str(getattr(vector, "dtype", "")).removeprefix("torch.")
    return "another kind" if shape is None else f"{' x '.join(map(str, shape))} numbers of {dtype}"


def _check_ranks(checkpoint: Checkpoint, experiment: Experiment) -> None:
    with_server = experiment.coordination.needs_server
    num_workers = len(checkpoint.ranks) - with_server
    if [rank.rank for rank in checkpoint.ranks] != list(range(num_workers + with_server)) or num_workers < 1:
        raise Unreadable("it has not the states of all ranks")
    if len(checkpoint.seconds) != len(checkpoint.ranks) or not all(0 <= seconds < math.inf for seconds in checkpoint.seconds):
        raise Unreadable("it does not say when its ranks had come so far")
    for rank in checkpoint.ranks:
        if rank.version > checkpoint.state.version:
            raise Unreadable("a rank is ahead of it")
        if any(count < 0 for count in rank.num_messages.values()):
            raise Unreadable("a rank has sent fewer messages than none")
        _check_own(rank.own, experiment, checkpoint.state.weights)
    for batch in checkpoint.state.outstanding:
        if not 0 <= batch.pool < num_workers:
            raise Unreadable("it has a range of nobody's samples")


def _check_own(values: Mapping[str, Any], experiment: Experiment, weights: Any) -> None:
    """Check the `own` values of hetsim's programs. Other programs' values are not checked."""
    for name, kind in OWN.items():
        if name in values and not isinstance(values[name], kind):
            raise Unreadable(f"a rank's {name} is of another kind")
    if "compression" in values:
        pushes, kind = values["compression"], type(experiment.coordination.compression.initial(weights))
        if not all(isinstance(state, kind) for state in (pushes.after, *(earlier for _, earlier in pushes.before))):
            raise Unreadable("what a compression has left out is that of another one")


def _check_progress(progress: Mapping[str, Any], is_vector: Callable[[Any], bool]) -> None:
    for entries, table in ((progress, PROGRESS), (progress.get("applied", {}), APPLIED), (progress.get("curve", {}), CURVE)):
        _check_table(entries, table, is_vector)
    for activity in progress["activity"]:
        _check_table(activity, ACTIVITY, is_vector)
        if not all(name in INTERVALS for name, *_ in activity["recent"]):
            raise Unreadable("it has intervals of no kind")
    reason = progress["divergence"][0]
    points = progress["curve"]["points"]
    if reason is not None and (not reason.isprintable() or len(reason) > MAX_LETTERS):
        raise Unreadable("it has a text that hetsim does not write")
    if not (points or progress["curve"]["unevaluated"]) or len({tuple(point.evaluation.named()) for point in points}) > 1:
        raise Unreadable("its learning curve is none")
    if not all(name.isidentifier() and len(name) <= MAX_LETTERS for point in points[:1] for name in point.evaluation.named()):
        raise Unreadable("its learning curve has a metric of another name")
    counts = [len(progress["applied"][name]) for name in PER_WORKER]
    if len(set(counts)) > 1:
        raise Unreadable("its counts are of several numbers of workers")


def _check_table(entries: Any, table: Mapping[str, Any], is_vector: Callable[[Any], bool]) -> None:
    is_complete = isinstance(entries, Mapping) and entries.keys() == table.keys()
    if not is_complete or not all(fits(entries[name], table[name], is_vector) for name in table):
        raise Unreadable("what it says of the run so far is of another kind")


def _check_policies(state: State, experiment: Experiment, task: Task) -> None:
    """Check that the policies' states belong to this method, and to this number of workers."""
    plan, num_workers = experiment.plan(task), experiment.num_workers
    initial = experiment.coordination.initial(plan, task.initial())
    for name in ("allocation", "compensation", "admission"):
        expected, saved = getattr(initial, name), getattr(state, name)
        if type(saved) is not type(expected):
            raise Unreadable(f"its {name} is that of another method")
        for field in fields(expected) if is_dataclass(expected) and not isinstance(expected, type) else ():
            by_rank, saved_by_rank = getattr(expected, field.name), getattr(saved, field.name)
            if isinstance(by_rank, tuple) and len(by_rank) == num_workers != len(saved_by_rank):
                raise Unreadable(f"its {name} is of another number of workers")
            if not all(0 <= rank < num_workers for rank in _ranks(saved_by_rank)):
                raise Unreadable(f"its {name} names workers that are not there")
    shares = experiment.coordination.allocation.shares(state.allocation)
    if sum(shares) != experiment.batch_size or min(shares) < plan.least_share:
        raise Unreadable("its shares are not those of a global batch")


def _ranks(part: Any) -> Iterator[int]:
    """The ranks in a policy's state: members of sets, keys of tables, and ranks of waiting contributions."""
    if isinstance(part, frozenset | Mapping):
        yield from part
    elif isinstance(part, tuple):
        yield from (entry.rank for entry in part if hasattr(entry, "rank"))


def _check_memories(checkpoint: Checkpoint, task: Task, optimizers: Optimizers) -> None:
    """Check that the optimizers can take a step with their memories."""
    nothing = zeros_like(task.initial())
    tried: list[Any] = []
    for rank in checkpoint.ranks:
        for optimizer, memory in ((optimizers.main, rank.optimizer), (optimizers.local, rank.local_optimizer)):
            if optimizer is None or any(memory is memory_tried for memory_tried in tried):
                continue
            tried.append(memory)
            try:
                fragments = fragment_memories(memory)
                for part in fragments.values() or (memory,):
                    if not _is_memory(part, optimizer.initial(), nothing):
                        raise ValueError("it is of another kind or size")
                for fragment, part in fragments.items():
                    optimizer.step(part, nothing, piece(nothing, fragment.start, fragment.stop), 0, fragment)
                if not fragments:
                    optimizer.step(memory, nothing, nothing, 0)
            except Exception as error:  # whatever torch says of a memory that is none of this optimizer's
                raise Unreadable(f"the memory of its optimizer fits no step: {' '.join(str(error).split())[:100]}") from None


def _is_memory(memory: Any, initial: Any, like: Any) -> bool:
    if initial is None or isinstance(like, Phantom):
        return memory is None
    values: Sequence[Any] = list(memory.values()) if isinstance(memory, Mapping) else [memory]
    return (
        isinstance(memory, Mapping)
        and all(isinstance(name, str) for name in memory)
        and all(isinstance(part, int | float) or part is None or (hasattr(part, "ndim") and part.ndim <= 1) for part in values)
    )
