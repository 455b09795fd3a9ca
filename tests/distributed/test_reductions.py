"""Sums over all ranks: in rank order, so that both worlds agree bit by bit, or as the library adds them up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import forking
from threads import run_in_threads
from worlds import cluster, experiment, node, simulate

from hetsim.distributed import Processes
from hetsim.distributed.communication.gloo import GlooTransport
from hetsim.distributed.communication.reduction import Reduction
from hetsim.distributed.launch import local as launch
from hetsim.distributed.rank.run import RankRun
from hetsim.runtime.experiment import Experiment
from hetsim.sim import Simulator
from hetsim.workloads.device import CPU

pytestmark = pytest.mark.slow

QUICK = cluster(*(node(seconds) for seconds in (4e-5, 1e-5, 2e-5)), network={"latency_seconds": 1e-5, "bytes_per_second": 1e9})
SIZES = (1, 2, 3, 4, 5, 7, 24, 25, 1000, 1003, 300_001)
"""Fewer numbers than ranks, as many as there are parts, and more than gloo sends in one piece."""
DTYPES = (torch.float32, torch.float64, torch.float16, torch.uint8, torch.int64)


def small(*choices: str, **keys: Any) -> Experiment:
    """A quadratic on three quick nodes."""
    small: dict[str, Any] = {"num_parameters": 7, "num_samples": 90}
    return experiment(
        *choices, "workload=quadratic", **{"workload": small, "batch_size": 30, "cluster": QUICK, "budget": {"epochs": 3}, **keys}
    )


def mine(rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """What a rank adds: numbers whose sum depends on the order, and whose bits are those of no other rank."""
    numbers = torch.randn(size, generator=torch.Generator().manual_seed(1000 * rank + size), dtype=torch.float64) * 10.0 ** (3 * rank)
    return (numbers.abs() if dtype == torch.uint8 else numbers).remainder(60).to(dtype)


def sums(rank: int, num_ranks: int, listening: Any, port: int, sender: Any) -> None:
    """In a process: both sums of each size and type, and whether what was handed in is as it was."""
    fd = listening.detach() if rank == 0 else None
    store = dist.TCPStore("127.0.0.1", port, num_ranks, rank == 0, master_listen_fd=fd)  # type: ignore[attr-defined]
    with GlooTransport.connect(rank, num_ranks, store) as transport:
        for size in SIZES:
            for dtype in DTYPES:
                handed_in = mine(rank, size, dtype)
                ordered, native = transport.sum_in_rank_order(handed_in), transport.sum(handed_in)
                for add, total in ((transport.sum_in_rank_order, ordered), (transport.sum, native)):
                    for given_up in (handed_in.clone(), torch.cat([handed_in, handed_in])[size:]):
                        assert add(given_up, in_place=True) is given_up
                        assert torch.equal(given_up, total)
                again = transport.sum_in_rank_order(-handed_in), transport.sum(-handed_in)
                assert torch.equal(handed_in, mine(rank, size, dtype))
                assert torch.equal(-again[0], ordered)
                sender.send_bytes(b"".join(tensor.numpy().tobytes() for tensor in (ordered, native)))
        transport.barrier()


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.sampled(1)
def test_all_ranks_have_the_same_bits(num_ranks: int) -> None:
    """Weights that differ would drift apart unseen. In rank order the bits are known; the library's differ from them by rounding.

    Two sums of N numbers in two orders differ by at most (N − 1) ε Σ |x|.
    """
    listening = launch.listen(None)
    context = forking()
    pipes = [context.Pipe(duplex=False) for _ in range(num_ranks)]
    port = listening.getsockname()[1]
    processes = [
        context.Process(target=sums, args=(rank, num_ranks, listening, port, sender), daemon=True) for rank, (_, sender) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    listening.close()
    for _, sender in pipes:
        sender.close()

    for size in SIZES:
        for dtype in DTYPES:
            assert all(receiver.poll(60) for receiver, _ in pipes)
            first, *others = (receiver.recv_bytes() for receiver, _ in pipes)

            assert all(other == first for other in others)
            ordered, native = torch.frombuffer(bytearray(first), dtype=dtype).split(size)
            start, *further = terms = [mine(rank, size, dtype) for rank in range(num_ranks)]
            assert torch.equal(ordered, sum(further, start=start))
            rounding = (num_ranks - 1) * torch.finfo(dtype).eps if dtype.is_floating_point else 0
            assert ((native.double() - ordered.double()).abs() <= rounding * sum(term.abs().double() for term in terms)).all()
    for process in processes:
        process.join(60)
        process.terminate()


@pytest.mark.parametrize("choices", ["method=ssgd", "method=ssgd coordination=overlapped_all_reduce", "method=pipe_sgd", "method=diloco"])
def test_the_librarys_sum_is_another_order_only(choices: str) -> None:
    """The weights of the simulator but for rounding, and the same on each rank; in rank order, to the last bit."""
    described = small(*choices.split(), dtype="float64")
    simulated = simulate(described).weights

    native, ordered = (run_in_threads(described, reduction=reduction) for reduction in ("native", "ordered"))

    weights = [end.last.weights for end in native if isinstance(end, RankRun)]
    assert len(weights) == 3, native
    assert all(torch.equal(other, weights[0]) for other in weights)
    assert not torch.equal(weights[0], simulated)
    torch.testing.assert_close(weights[0], simulated, rtol=0, atol=1e-12)
    assert all(isinstance(end, RankRun) and torch.equal(end.last.weights, simulated) for end in ordered), ordered


def test_real_processes_add_up_as_the_config_says(tmp_path: Path) -> None:
    """The losses in rank order are the simulator's to the last bit; gloo's own are others, by rounding. The summary says which."""
    described = small("method=ssgd", dtype="float64", budget={"epochs": 10})
    losses = {}

    for name, backend in {
        "simulated": Simulator(),
        "ordered": Processes(emulate="none"),
        "native": Processes(emulate="none", reduction="native"),
    }.items():
        summary = backend.run(described, tmp_path / name, "")

        assert summary is not None
        assert summary["emulation"] == (None if name == "simulated" else {"emulate": "none", "reduction": name, "library": "gloo"})
        losses[name] = [float(line.split(",")[3]) for line in (tmp_path / name / "curve.csv").read_text().splitlines()[1:]]
    assert len(losses["native"]) == 11
    assert losses["ordered"] == losses["simulated"]
    assert losses["native"] != losses["simulated"]
    assert losses["native"] == pytest.approx(losses["simulated"], rel=1e-12)


def test_phantoms_are_added_up_too(tmp_path: Path) -> None:
    """They travel as bytes."""
    described = experiment("method=ssgd", "workload=phantom", cluster=QUICK, budget={"updates": 3})

    summary = Processes(emulate="none", reduction="native").run(described, tmp_path, "")

    assert summary is not None
    assert summary["num_updates"] == 3


@pytest.mark.parametrize("order", ["ordered", "native"])
def test_the_sum_of_one_rank_is_its_vector(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the simulator, nobody is asked for it; what was handed in stays as it is unless it is given up."""
    with GlooTransport.connect(0, 1, dist.HashStore()) as transport:
        for name in ("all_to_all", "all_gather", "add_up"):
            monkeypatch.setattr(type(transport), name, lambda *_: pytest.fail("a rank alone asked the others"))
        reduction = Reduction.by_gloo(transport, CPU(), order)
        for add in (reduction.main, reduction.second):
            vector = torch.randn(5)
            total = add(vector)

            assert torch.equal(total, vector)
            assert total is not vector
            assert add(vector, in_place=True) is vector
