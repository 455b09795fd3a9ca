"""A reduction that overlaps with the backward pass: buckets, exact times, losses, and the sums of real ranks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from threading import current_thread
from typing import Any

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from processes import run_in_processes
from threads import run_in_threads
from torch import nn
from torch.nn import functional
from worlds import Run, cluster, experiment, node, simulate

from hetsim.coordination.all_reduce import SynchronousAllReduce
from hetsim.distributed.rank.run import RankRun
from hetsim.effects import Batch
from hetsim.errors import RunFailed
from hetsim.runtime.buckets import buckets_of, even_pieces, make_buckets, reduction_intervals
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.rank import RankState
from hetsim.workloads.device import device
from hetsim.workloads.models.registry import OWN
from hetsim.workloads.task import Bucket, Piece
from hetsim.workloads.tasks.backward import Terms
from hetsim.workloads.tasks.classification import Classification
from hetsim.workloads.tasks.flat_model import FlatModel

OVERLAPPED = ("method=ssgd", "coordination=overlapped_all_reduce")
LINK = {"latency_seconds": 0.125, "bytes_per_second": 64.0}


def run(*choices: str, bucket_bytes: int, on: dict[str, Any], num_samples: int = 60_000, **keys: Any) -> Run:
    """Timing only, of twelve numbers of four bytes, with a full trace."""
    sizes = {"num_parameters": 12, "num_samples": num_samples}
    its = experiment(*choices, "workload=phantom", workload=sizes, cluster=on, coordination={"bucket_bytes": bucket_bytes}, **keys)
    return simulate(its, trace="full")


def test_a_bucket_is_closed_once_it_is_full_and_the_first_one_sooner() -> None:
    """Pieces come from the end of the vector; a piece is never divided; the last bucket is ready at the gradient's end."""
    pieces = [Piece(3, 0.4), Piece(1, 0.5), Piece(5, 0.45), Piece(2, 0.7), Piece(9, 0.9)]

    buckets = make_buckets(20, pieces, 4, 6)

    assert buckets == (Bucket(16, 20, 0.5), Bucket(9, 16, 0.7), Bucket(0, 9, 1.0))


def test_without_layers_a_vector_is_completed_evenly_after_the_forward_pass() -> None:
    """A third of the time is the forward pass's, as the backward pass takes twice as long."""
    pieces = list(even_pieces(12, 3, 6))

    assert [piece.size for piece in pieces] == [3, 6, 3]
    assert [piece.ready for piece in pieces] == pytest.approx([1 / 3 + 2 / 3 * done / 12 for done in (3, 9, 12)])


PIECES = st.lists(st.tuples(st.integers(1, 9), st.floats(0, 1)), min_size=1, max_size=12)


@examples(40)
@given(pieces=PIECES, first=st.integers(1, 20), more=st.integers(0, 20))
def test_buckets_are_a_vector_divided(pieces: list[tuple[int, float]], first: int, more: int) -> None:
    """From the end to the beginning, without a gap, each ready when all of it is."""
    given = [Piece(*piece) for piece in pieces]
    num = sum(piece.size for piece in given)

    buckets = make_buckets(num, given, first, first + more)

    assert [bucket.stop for bucket in buckets] == [num, *(bucket.start for bucket in buckets[:-1])]
    assert buckets[-1].start == 0
    assert buckets[-1].ready == 1.0
    assert [bucket.ready for bucket in buckets] == sorted(bucket.ready for bucket in buckets)
    ends = {bucket.start: bucket.ready for bucket in buckets}
    position = num
    for piece in given:
        position -= piece.size
        assert piece.ready <= min(ready for start, ready in ends.items() if start <= position)


def test_reductions_wait_for_their_bucket_and_for_each_other() -> None:
    """The second one is ready before the first is over, the third one after the second."""
    seconds = [lambda _: 3.0, lambda _: 1.0, lambda begin: begin / 9]

    assert list(reduction_intervals([1.0, 2.0, 9.0], seconds)) == [(1.0, 4.0), (4.0, 5.0), (9.0, 10.0)]


def test_a_step_is_the_last_gradient_and_what_of_the_reductions_comes_after_it() -> None:
    """Three buckets of sixteen bytes on two nodes of 3 s and 9 s: a ring takes 0.5 s, and the slow node has them after 5, 7 and 9 s."""
    workers = cluster(node(1.0), node(3.0), network=LINK)

    its = run(*OVERLAPPED, bucket_bytes=16, on=workers, batch_size=6, budget={"updates": 2})

    ring = 2 * (0.125 + 16 / (2 * 64))
    assert its.seconds == pytest.approx([9 + ring, 2 * (9 + ring)])
    first = [(row.rank, row.start, row.end, row.nbytes) for row in its.rows("all_reduce")[:6]]
    entered = [(1 + 2 * k / 3, 3 * (1 + 2 * k / 3)) for k in (1, 2, 3)]
    assert first == [(rank, pytest.approx(entered[k][rank]), pytest.approx(entered[k][1] + ring), 16) for k in range(3) for rank in (0, 1)]


def test_a_phantom_of_a_resnet_overlaps_under_ddp() -> None:
    """Of 25.6 million numbers: 1 MiB first, then 25 MiB each, completed evenly after the forward third; a slow wire decides."""
    on = cluster(node(1.0, count=2), network={"latency_seconds": 0.0, "bytes_per_second": 1e6})
    sizes = {"num_parameters": 25_600_000, "num_samples": 60_000}
    its = experiment("method=ddp", "workload=phantom", workload=sizes, cluster=on, batch_size=6, budget={"updates": 1})
    made = simulate(its, trace="full")

    first, *others = made.simulation.prepared.buckets(25 * 2**20)
    assert [first.stop - first.start, *{bucket.stop - bucket.start for bucket in others[:-1]}] == [2**18, 25 * 2**18]
    assert first.ready == pytest.approx(1 / 3 + 2 / 3 * 2**18 / 25_600_000)
    assert made.seconds[0] == pytest.approx(3.0 * first.ready + 25_600_000 * 4 / 1e6)


def test_a_slow_link_has_the_reductions_one_after_another() -> None:
    """On two equal nodes of 3 s whose ring takes 4 s for a third: 1.67 + 3 · 4, where SSGD takes 3 + 12."""
    workers = cluster(node(1.0, count=2), network={"latency_seconds": 0.0, "bytes_per_second": 4.0})

    its = run(*OVERLAPPED, bucket_bytes=16, on=workers, batch_size=6, budget={"updates": 1})

    assert its.seconds == pytest.approx([5 / 3 + 3 * 4])


def beside(per_byte: float, *, rate: float = 64.0, seconds: tuple[float, ...] = (1.0, 1.0)) -> list[float]:
    """The ends of two updates of three samples a node, in buckets of sixteen bytes that each cost as much of a gradient."""
    nodes = [node(one, overlap_seconds_per_byte=per_byte) for one in seconds]
    on = cluster(*nodes, network={"latency_seconds": 0.0, "bytes_per_second": rate})
    its = run(*OVERLAPPED, bucket_bytes=16, on=on, batch_size=3 * len(nodes), budget={"updates": 2})
    return its.seconds


def test_a_reduction_beside_a_gradient_takes_some_of_its_time() -> None:
    """On two nodes of 3 s, each bucket is reduced in 0.25 s. The first two are ready after 1.67 and 2.33 s, beside the gradient."""
    assert beside(0.0) == pytest.approx([3.25, 6.5])
    assert beside(1 / 128) == pytest.approx([3.25 + 2 * 0.125, 6.5 + 4 * 0.125])


def test_a_reduction_takes_no_more_than_its_own_seconds() -> None:
    """As the gradient then stands still while it lasts."""
    assert beside(1.0) == beside(1 / 64) == pytest.approx([3.75, 7.5])


def test_what_is_reduced_after_the_gradient_takes_nothing_from_it() -> None:
    """The first of 0.8 s is ready after 1.67 s; the second waits for it until 2.47 s, and is beside the gradient for 2/3 of its time."""
    assert beside(1 / 64, rate=20.0)[0] == pytest.approx(3 + 0.25 + 0.25 * 2 / 3 + 0.8)
    assert beside(1 / 64, rate=4.0)[0] == beside(0.0, rate=4.0)[0] == pytest.approx(5 / 3 + 3 * 4)


def test_a_rank_that_is_done_sooner_loses_nothing() -> None:
    """Of 3 and 9 s, the first reduction begins after 5 s: only the slow one's gradient is beside it."""
    assert beside(1 / 128, seconds=(1.0, 3.0))[0] == pytest.approx(9 + 2 * 0.125 + 0.25)


@examples(30)
@given(
    seconds=st.lists(st.floats(0.1, 3.0), min_size=1, max_size=4),
    rate=st.floats(1.0, 100.0),
    costs=st.lists(st.integers(0, 1000), min_size=2),
)
def test_it_is_never_faster_and_never_slower_than_one_after_the_other(seconds: list[float], rate: float, costs: list[float]) -> None:
    """A higher cost never makes a step shorter; with any cost, a step takes at most the gradient and all reductions."""
    ends = [beside(cost / 1000, rate=rate, seconds=tuple(seconds))[0] for cost in (0, *sorted(costs))]
    ring = 2 * (len(seconds) - 1) / len(seconds) * 48 / rate

    assert ends == sorted(ends)
    assert ends[-1] <= (3 * max(seconds) + ring) * (1 + 1e-12)


def test_a_rank_without_samples_takes_part_at_once() -> None:
    """The last batch of an epoch has samples for the first node alone."""
    workers = cluster(node(1.0, count=2), network=LINK)

    its = run(*OVERLAPPED, bucket_bytes=16, on=workers, batch_size=2, budget={"epochs": 1}, num_samples=3)

    last = its.rows("all_reduce")[6:]
    assert [row.start for row in last if row.rank == 1] == [its.seconds[0]] * 3
    assert its.states[-1].num_samples == 3


@pytest.mark.parametrize("per_byte", [0.0, 1 / 128])
@pytest.mark.parametrize("crash", [0.5, 1.4, 2.2, 3.0, 3.2, 3.5])
def test_a_crash_at_any_moment_of_a_step_restarts_it_from_the_last_commit(crash: float, per_byte: float) -> None:
    """While nothing, one bucket or two are reduced, and before the last one or while it is: 2 s later the step is computed again."""
    faults = {"schedule": [{"nodes": [1], "crash": crash, "repair": crash + 2}], "detection_seconds": 0.125, "regroup_seconds": 0.25}
    workers = {**cluster(node(1.0, count=3, overlap_seconds_per_byte=per_byte), network=LINK), "faults": faults}

    its = run(*OVERLAPPED, bucket_bytes=16, on=workers, batch_size=9, budget={"updates": 4})

    assert [state.num_samples for state in its.states] == [9, 18, 27, 36]
    assert {c.rank for group in its.applied[2:] for c in group} == {0, 1, 2}
    assert its.seconds[0] > 3.0


def test_processes_that_share_a_core_reduce_while_they_compute() -> None:
    """On one core each, and messages that cost nothing, the times are those without hosts."""
    described = cluster(node(1.0, host="a"), node(3.0, host="a"), network=LINK)
    shared = {**described, "hosts": {"a": {"cores": 2}}}
    plain = cluster(node(1.0), node(3.0), network=LINK)

    here, there = (run(*OVERLAPPED, bucket_bytes=16, on=on, batch_size=6, budget={"updates": 3}) for on in (shared, plain))

    assert type(here.simulation).__name__ == "HostWorld"
    assert here.seconds == pytest.approx(there.seconds)


class Reused(nn.Module):
    """A layer that is used twice, one without a gradient, one that the loss does not depend on, and batch norm."""

    def __init__(self, num_inputs: int, num_classes: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(num_inputs, num_inputs).requires_grad_(False)
        self.first = nn.Linear(num_inputs, 8)
        self.norm = nn.BatchNorm1d(8)
        self.twice = nn.Linear(8, 8)
        self.unused = nn.Linear(3, 3)
        self.last = nn.Linear(8, num_classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = functional.relu(self.norm(self.first(self.frozen(inputs.flatten(1)))))
        return self.last(functional.relu(self.twice(functional.relu(self.twice(x)))))


@pytest.fixture(autouse=True)
def reused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a model by this name."""
    monkeypatch.setitem(OWN, "reused", lambda shape, num_classes: Reused(int(torch.Size(shape).numel()), num_classes))


def classifier(dtype: str = "float64") -> Classification:
    """Digits and that model."""
    workload = experiment("workload=digits", workload={"model": "reused"}).workload
    task = workload.load(seed=0, dtype=dtype, device=device("cpu"))
    assert isinstance(task, Classification)
    return task


@pytest.mark.parametrize("bucket_bytes", [8, 700, 10**6])
def test_the_terms_that_a_backward_pass_hands_out_are_the_gradient_times_the_factor(bucket_bytes: int) -> None:
    """To the last bit, bucket by bucket in order, with statistics, and zeros for what has no gradient."""
    task = classifier()
    at, batch, factor = task.initial() + 0.01, Batch(64, 16), 0.3
    gradient, loss = task.gradient(at, batch)
    buckets, seen = buckets_of(task)(bucket_bytes), dict[int, torch.Tensor]()

    term, same_loss = task.terms(at, batch, factor, buckets, lambda k, numbers: seen.update({k: numbers.clone()}))

    assert torch.equal(term, factor * gradient)
    assert same_loss == loss
    assert list(seen) == list(range(len(buckets)))
    assert all(torch.equal(seen[k], term[bucket.start : bucket.stop]) for k, bucket in enumerate(buckets))
    assert torch.equal(task.gradient(at, batch)[0], gradient)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # PyTorch 2.11, of the test's own hook
def test_a_bucket_is_handed_out_before_the_backward_pass_goes_on() -> None:
    """When the last layer's gradient is there, the first layer's is not: whoever is called may overwrite the bucket at once."""
    task = classifier()
    buckets = buckets_of(task)(8)
    begun, seen = [False], list[bool]()
    task.model.get_submodule("first").register_full_backward_pre_hook(lambda *_: begun.append(True))

    task.terms(task.initial(), Batch(0, 16), 1.0, buckets, lambda *_: seen.append(begun[-1]))

    assert seen[0] is False
    assert seen[-1] is True


def test_a_models_layers_are_complete_when_their_operations_are_done() -> None:
    """Of 64, 8 and 10 numbers: 512 + 80 products forward, backward 80 for each of the last layer's inputs and weights, and 512."""
    workload = experiment("workload=digits", workload={"model": "mlp", "model_options": {"hidden": [8]}}).workload
    task = workload.load(seed=0, dtype="float32", device=device("cpu"))

    pieces = task.pieces()

    assert pieces is not None
    assert [piece.size for piece in pieces] == [10, 80, 8, 512]
    assert pieces[1].ready == pytest.approx((592 + 160) / (592 + 160 + 512))
    assert pieces[3].ready == 1.0


@pytest.mark.slow
@pytest.mark.long
def test_counting_operations_does_not_import_pytorchs_compiler() -> None:
    """Which takes seconds, and does nothing here."""
    words = "workload.load(seed=0, dtype='float32', device=device('cpu')).pieces()"
    code = "import sys; sys.path.insert(0, sys.argv[1]); from worlds import experiment; from hetsim.workloads.device import device; "
    code += f"workload = experiment('workload=digits').workload; print(len({words}), 'torch._dynamo' in sys.modules)"

    told = subprocess.run([sys.executable, "-c", code, Path(__file__).parents[1]], capture_output=True, text=True, check=True, timeout=60)

    assert told.stdout.split() == ["4", "False"]


def test_a_bucket_has_at_least_one_byte() -> None:
    """As the other keys, it is checked where the experiment is built."""
    with pytest.raises(ValueError, match=r"^coordination.bucket_bytes must be at least 1, not 0$"):
        experiment(*OVERLAPPED, coordination={"bucket_bytes": 0})


QUICK = cluster(*(node(seconds) for seconds in (4e-5, 1e-5, 2e-5)), network={"latency_seconds": 1e-5, "bytes_per_second": 1e9})


def trained(**keys: Any) -> Experiment:
    """The model with batch norm, on 750 digits, in buckets of 400 bytes, and batches of 60 as 3 : 1 : 2, the last one shorter."""
    return experiment(
        *("method=hetgrad", "allocation=fixed", "coordination=overlapped_all_reduce", "workload=digits"),
        **{
            "workload": {"model": "reused", "num_samples": 750}, "allocation": {"parts": [3, 1, 2]}, "coordination": {"bucket_bytes": 400},
            "batch_size": 60, "cluster": QUICK, "dtype": "float64", "budget": {"epochs": 1.1}, **keys,
        },
    )  # fmt: skip


@pytest.mark.slow
def test_real_ranks_that_overlap_have_the_simulators_bits() -> None:
    """With statistics, unequal shares, and a last batch in which ranks have no samples; so has SSGD without an overlap."""
    described = trained()
    policies = {axis.name: getattr(described.coordination, axis.name) for axis in fields(SynchronousAllReduce)}
    expected = simulate(replace(described, coordination=SynchronousAllReduce(**policies))).weights

    ends = run_in_threads(described)

    assert torch.equal(simulate(described).weights, expected)
    for end in ends:
        assert isinstance(end, RankRun), ends
        assert torch.equal(end.last.weights, expected)
    assert len(buckets_of(described.load()[0])(400)) == 3


@pytest.mark.slow
def test_real_ranks_are_held_while_reductions_take_time_from_their_gradients() -> None:
    """A step takes what it takes in virtual time, or longer, and that is much more than without."""

    def described(per_byte: float) -> Experiment:
        nodes = [node(seconds, overlap_seconds_per_byte=per_byte) for seconds in (4e-3, 1e-3, 2e-3)]
        on = cluster(*nodes, network={"latency_seconds": 0.0, "bytes_per_second": 1e6})
        model = {"model": "mlp", "model_options": {"hidden": [40, 40, 40, 40]}}
        sizes = {"coordination": {"bucket_bytes": 2000}, "batch_size": 60, "budget": {"updates": 4}}
        return experiment(*OVERLAPPED, "workload=digits", workload=model, cluster=on, **sizes)

    def ends(rows: Sequence[Any]) -> list[float]:
        """The end of each version's last reduction."""
        return [max(row.end for row in rows if row.kind == "all_reduce" and row.version == version) for version in range(4)]

    alone, beside = (ends(simulate(described(per_byte), trace="full").rows()) for per_byte in (0.0, 1.0))
    real = ends([row for part in run_in_processes(described(1.0)) for row in part.rows])

    assert beside[-1] > 1.2 * alone[-1]
    assert all(end >= least - 1e-9 for end, least in zip(real, beside, strict=True))
    assert real[-1] < 1.5 * beside[-1]


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_is_left_out_of_the_sum_after_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its buckets are in the sum before anybody knows; then all ranks add up again, without it, and it is counted once."""
    plain = FlatModel.gradient

    def gradient(self: FlatModel, at: torch.Tensor, batch: Batch, loss: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, float]:
        broken = batch.start <= 95 < batch.stop
        return plain(self, at, batch, lambda: loss() * (float("inf") if broken else 1.0))

    monkeypatch.setattr(FlatModel, "gradient", gradient)
    described = trained()
    simulated = simulate(described)

    ends = run_in_threads(described)

    assert simulated.weights.isfinite().all()
    assert sum(each.num_nonfinite for each in simulated.simulation.metrics.activity) == 1
    for end in ends:
        assert isinstance(end, RankRun), ends
        assert torch.equal(end.last.weights, simulated.weights)


@pytest.mark.slow
def test_a_rank_that_is_lost_during_a_backward_pass_is_lost_at_the_line_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others, which reduce its buckets, get PeerLost, and none of them waits for ever."""
    plain = Terms.arrived

    def arrived(self: Terms, parameter: int, gradient: torch.Tensor) -> None:
        plain(self, parameter, gradient)
        if current_thread().name == "dies" and parameter == 2:
            raise RunFailed("this rank is lost")

    monkeypatch.setattr(Terms, "arrived", arrived)

    def keep(state: RankState) -> None:
        if state.rank == 1 and state.version == 3:
            current_thread().name = "dies"

    ends = run_in_threads(trained(), keep=keep)

    assert [type(end).__name__ for end in ends] == ["PeerLost", "RunFailed", "PeerLost"]
    assert str(ends[1]) == "this rank is lost"
