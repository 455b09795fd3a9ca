"""What the ranks of `test_ddp_settings.py` do: calls that wait for others, copies of a wrapped model, a script's own settings."""

from __future__ import annotations

import copy
import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from ddp_laws import UNEVEN, Changing, Samples, farthest, gradients, mlp, raised
from ranks import found_by
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel

from hetsim.ddp import Team
from hetsim.ddp.exchange import timeout_of


def torchs() -> list[Any]:
    """Methods of torch that a Team times."""
    return [vars(dist.Work)["wait"], *(vars(dist.ProcessGroup)[name] for name in ("allreduce", "broadcast", "recv"))]


def received(rank: int, late: torch.Tensor) -> None:
    if rank == 1:
        dist.send(late, 0)
    elif rank == 0:
        dist.recv(late, 1)


CALLS: dict[str, Callable[[int, torch.Tensor], Any]] = {
    "all_reduce": lambda _, late: dist.all_reduce(late),
    "later": lambda _, late: dist.all_reduce(late, async_op=True).wait(),
    "broadcast": lambda _, late: dist.broadcast(late, 1),
    "recv": received,
}
"""What tells rank 0, by the way, when rank 1 was there. Ranks of one host have one clock."""


def waits(rank: int) -> dict[str, Any]:
    """Rank 1 comes after rank 0 to a call before each backward: whether rank 0 waited then, by its window; and what torch's methods are."""
    before, found, store = torchs(), dict[str, Any](), dist.distributed_c10d._get_default_store()
    team = Team(28)
    model, steps = team.wrap(DDP(mlp())), iter(team.loader(Samples(28 * 8)))
    for name, call in {**CALLS, "own": None}.items():
        x, y, _ = next(steps)
        loss = mse_loss(model(x), y)
        if rank == 0:
            store.set(f"rank 0 comes to {name}", "")
        here = time.perf_counter()
        late = torch.tensor([0.0], dtype=torch.float64)
        if call is None:
            with team.waiting():
                late += time.perf_counter()
        else:
            if rank == 1:
                store.wait([f"rank 0 comes to {name}"])
                time.sleep(0.01)
                late += time.perf_counter()
            call(rank, late)
        loss.backward()
        window = team._balance._last
        assert window is not None
        found[name] = any(here <= start <= float(late) <= end for start, end in window.waits)
    found["timed"] = [each is not other for each, other in zip(torchs(), before, strict=True)]
    team.close()
    found["undone"] = [each is other for each, other in zip(torchs(), before, strict=True)]
    return found


def copies(rank: int) -> dict[str, Any]:
    """An average of the weights computes, a copy that is trained is refused until a Team wraps it, and the wrapped model goes on."""
    samples = Samples(56)
    teams = [Team(28, UNEVEN) for _ in range(2)]
    model, steps = teams[0].wrap(DDP(mlp())), iter(teams[0].loader(samples))
    average, other = AveragedModel(model), copy.deepcopy(model)
    x, y, _ = next(steps)
    with torch.no_grad():
        same = bool((average(x) == model(x)).all())
    sentence = raised(lambda: mse_loss(average(x), y).backward())
    mse_loss(model(x), y).backward()
    teams[1].wrap(other)
    x, y, _ = next(iter(teams[1].loader(samples)))
    mse_loss(other(x), y).backward()
    return {"same": same, "sentence": sentence, "error": farthest(gradients(model), gradients(other))}


def hooked(rank: int) -> list[str]:
    """A communication hook that is there before, in Python and in C++."""
    ones = [DDP(mlp()) for _ in range(2)]
    ones[0].register_comm_hook(None, fp16_compress_hook)
    ones[1]._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    return [raised(lambda: Team(28).wrap(one)) for one in ones]  # noqa: B023 it is called at once


def multiples(rank: int) -> list[tuple[int, ...]]:
    """A rule that gives the ranks 64, 32 and 16 of 112 samples in turn."""
    team = Team(112, Changing(), multiple_of=4, at_least=18, warmup_steps=0)
    model, shares = team.wrap(DDP(mlp())), []
    for x, y, _ in team.loader(Samples(112 * 8), drop_last=True):
        mse_loss(model(x), y).backward()
        assert len(x) == team.samples
        shares.append(team.shares)
    return shares


def freed(rank: int) -> list[bool]:
    """A Team, a loader and a model that nobody has any more: whether the model is gone, and torch has its methods again."""
    before, model = torchs(), DDP(mlp())
    team = Team(28)
    loader = team.loader(Samples(56))
    team.wrap(model)
    for x, y, _ in loader:
        mse_loss(model(x), y).backward()
    known = weakref.ref(model)
    del team, loader, model
    gc.collect()
    return [known() is None, torchs() == before]


def read(rank: int) -> dict[str, Any]:
    """What scripts read of a DataLoader; of `batch_size`, the sentence."""
    loader = Team(28).loader(Samples(56))
    found = {name: getattr(loader, name) for name in ("num_workers", "pin_memory")}
    same = loader.batch_sampler is loader.sampler
    try:
        return {**found, "same": same, "batch_size": loader.batch_size}
    except AttributeError as error:
        return {**found, "same": same, "batch_size": str(error)}


def all_settings(rank: int) -> dict[str, Any]:
    """Each by its name."""
    laws: dict[str, Callable[[], Any]] = {
        "waits": lambda: waits(rank),
        "copies": lambda: copies(rank),
        "hooked": lambda: hooked(rank),
        "freed": lambda: freed(rank),
        "read": lambda: read(rank),
        "multiples": lambda: multiples(rank),
        "timeout": lambda: (timeout_of(Team(28)._control.group), timeout_of(None)),
        "short": lambda: raised(lambda: Team(28, multiple_of=2).loader(Samples(56))),
    }
    return found_by(laws)
