"""What the ranks of `test_ddp_laws.py` do: each law in turn, in one world of three ranks. What they return is asserted there."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed.algorithms.ddp_comm_hooks.default_hooks as hooks
from ranks import found_by
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP

from hetsim.ddp import Team
from hetsim.ddp.clock import HostClock
from hetsim.ddp.schedule import Data
from hetsim.policies.allocation import Fixed, OptPerf, SpeedProportional

PARTS = [4, 2, 1]
BATCH_SIZE = 28
UNEVEN = Fixed(parts=PARTS)
WORKERS = {"num_workers": 1, "prefetch_factor": 1, "multiprocessing_context": "fork"}


class Samples(torch.utils.data.Dataset):
    """Inputs, targets and the place of each sample."""

    def __init__(self, number: int, dtype: torch.dtype = torch.float64) -> None:
        torch.manual_seed(1)
        self.x, self.y = torch.randn(number, 6, dtype=dtype), torch.randn(number, 2, dtype=dtype)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.x[place], self.y[place], place


def mlp(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2)).to(dtype)


class SometimesUnused(nn.Module):
    """One of its parts never takes part."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.used, self.unused = nn.Linear(6, 2).double(), nn.Linear(6, 2).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for p in model.parameters()]


def farthest(ones: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    return max(float((one - other).abs().max()) for one, other in zip(ones, others, strict=True))


def serial_batches(data: Data, epoch: int) -> Iterator[torch.Tensor]:
    """The global batches of an epoch, as one process would take them."""
    order = torch.from_numpy(data.order(epoch))
    for step in range(data.num_steps()):
        yield order[step * data.batch_size : (step + 1) * data.batch_size]


def against_serial(
    make: Callable[[], nn.Module] = mlp,
    *,
    number: int = 60,
    epochs: int = 2,
    dtype: torch.dtype = torch.float64,
    loader: dict[str, Any] | None = None,
    wrapped: dict[str, Any] | None = None,
    change: Callable[[nn.Module], nn.Module] = lambda model: model,
    hook: Any = hooks.allreduce_hook,
    state: Any = None,
    clip: float | None = None,
    scaler: bool = False,
) -> float:
    """The farthest that gradients are from those of one process with the same global batches, over epochs with a short last step."""
    samples = Samples(number, dtype)
    team = Team(BATCH_SIZE, UNEVEN)
    batches = team.loader(samples, **(loader or {}))
    model = change(team.wrap(DDP(make(), **(wrapped or {})), hook, state))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    alone = make()
    stepped = torch.optim.SGD(alone.parameters(), lr=0.1)
    scalers = [torch.amp.GradScaler("cpu", init_scale=64.0, enabled=scaler) for _ in range(2)]
    worst = 0.0
    for epoch in range(epochs):
        serial = serial_batches(Data(number, BATCH_SIZE), epoch)
        for (x, y, _), places in zip(batches, serial, strict=True):
            for trained, of, scaled, (inputs, targets) in (
                (model, optimizer, scalers[0], (x, y)),
                (alone, stepped, scalers[1], (samples.x[places], samples.y[places])),
            ):
                of.zero_grad()
                scaled.scale(mse_loss(trained(inputs), targets)).backward()
                scaled.unscale_(of)
                if clip is not None:
                    nn.utils.clip_grad_norm_(trained.parameters(), clip)
            worst = max(worst, farthest(gradients(model), gradients(alone)))
            for of, scaled in ((optimizer, scalers[0]), (stepped, scalers[1])):
                scaled.step(of)
                scaled.update()
    return worst


def zero_weight(rank: int) -> dict[str, Any]:
    """Two samples are left in the last step for three ranks; the sample of weight 0 has a loss that is no number."""
    number = BATCH_SIZE + 2
    samples, data = Samples(number), Data(number, BATCH_SIZE)
    team = Team(BATCH_SIZE, UNEVEN)
    model, alone = team.wrap(DDP(mlp())), mlp()
    for places, (x, y, _) in zip(serial_batches(data, 0), team.loader(samples), strict=True):
        loss = mse_loss(model(x), y) * (1.0 if team.samples else float("nan"))
        model.zero_grad()
        alone.zero_grad()
        loss.backward()
        mean = team.mean(loss.detach())
        serial = mse_loss(alone(samples.x[places]), samples.y[places])
        serial.backward()
    return {
        "shares": team.shares,
        "batch": len(x),
        "error": farthest(gradients(model), gradients(alone)),
        "mean": abs(float(mean) - serial.item()),
    }


def even_is_ddp(rank: int) -> float:
    """Even shares: the gradients of plain DDP on the same batches."""
    samples = Samples(54, torch.float32)
    team = Team(27, "even")
    one, other = team.wrap(DDP(mlp(torch.float32))), DDP(mlp(torch.float32))
    other.register_comm_hook(None, hooks.allreduce_hook)
    worst = 0.0
    for x, y, _ in team.loader(samples):
        for model in (one, other):
            model.zero_grad()
            mse_loss(model(x), y).backward()
        worst = max(worst, farthest(gradients(one), gradients(other)))
    return worst


def scale_is_the_hook(rank: int) -> float:
    """loss · N·b_i/R on a plain DDP model gives the gradients of the wrapped one."""
    samples = Samples(60)
    teams = [Team(BATCH_SIZE, UNEVEN) for _ in range(2)]
    one, other = teams[0].wrap(DDP(mlp())), DDP(mlp())
    worst = 0.0
    for (x, y, _), _ in zip(*(team.loader(samples) for team in teams), strict=True):
        one.zero_grad()
        other.zero_grad()
        mse_loss(one(x), y).backward()
        teams[1].scale(mse_loss(other(x), y)).backward()
        worst = max(worst, farthest(gradients(one), gradients(other)))
    return worst


def tokens(rank: int) -> dict[str, float]:
    """Each sample has as many tokens as its place says; the loss is the mean over the tokens of a batch."""
    samples, data = Samples(59), Data(59, BATCH_SIZE)
    ones = [Team(BATCH_SIZE, UNEVEN) for _ in range(2)]
    counted, scaled, alone = ones[0].wrap(DDP(mlp())), DDP(mlp()), mlp()

    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        number = 1 + places % 5
        each = ((model(x) - y) ** 2).mean(dim=1)
        return (each * number).sum() / number.sum(), number.sum()

    worst = {"count": 0.0, "scale": 0.0}
    loaders = [team.loader(samples) for team in ones]
    for (x, y, places), _, everything in zip(*loaders, serial_batches(data, 0), strict=True):
        for model in (counted, scaled, alone):
            model.zero_grad()
        mean, number = loss(counted, x, y, places)
        ones[0].count(number)
        mean.backward()
        mean, number = loss(scaled, x, y, places)
        ones[1].scale(mean, number).backward()
        loss(alone, samples.x[everything], samples.y[everything], everything)[0].backward()
        for name, model in (("count", counted), ("scale", scaled)):
            worst[name] = max(worst[name], farthest(gradients(model), gradients(alone)))
    return worst


def windows(rank: int) -> dict[str, Any]:
    """no_sync in windows of two steps while splits change at every decision; and the sentence where they change within a window."""
    samples = Samples(28 * 8)
    team = Team(BATCH_SIZE, Changing(), accumulate=2, warmup_steps=0)
    model, alone = team.wrap(DDP(mlp())), mlp()
    data = team_data = Data(len(samples), BATCH_SIZE, drop_last=True, accumulate=2)
    worst, shares = 0.0, []
    for epoch in range(2):
        pairs = zip(team_loader(team, samples, epoch), serial_batches(team_data, epoch), strict=True)
        for place, ((x, y, _), places) in enumerate(pairs):
            kept = place % 2 == 0
            if kept:
                model.zero_grad()
                alone.zero_grad()
            with model.no_sync() if kept else contextlib.nullcontext():
                (mse_loss(model(x), y) / 2).backward()
            (mse_loss(alone(samples.x[places]), samples.y[places]) / 2).backward()
            shares.append(team.shares)
            if not kept:
                worst = max(worst, farthest(gradients(model), gradients(alone)))
    assert data.num_steps() == 8
    team = Team(BATCH_SIZE, Changing(), warmup_steps=0)
    model, sentence = team.wrap(DDP(mlp())), ""
    try:
        for place, (x, y, _) in enumerate(team.loader(samples, **WORKERS)):
            with model.no_sync() if place % 2 == 0 else contextlib.nullcontext():
                mse_loss(model(x), y).backward()
    except ValueError as error:
        sentence = str(error)
    return {"error": worst, "shares": shares, "sentence": sentence}


LOADERS: dict[int, Any] = {}


def team_loader(team: Team, samples: Samples, epoch: int) -> Any:
    if epoch == 0:
        LOADERS[id(team)] = team.loader(samples, drop_last=True)
    return LOADERS[id(team)]


class Changing(SpeedProportional):
    """Another split after every measurement: all rotations of one."""

    def __init__(self) -> None:
        super().__init__(reallocate_every=1)

    def decide(self, state):
        first, *rest = state.shares if len(set(state.shares)) > 1 else (16, 8, 4)
        return (*rest, first), state.v


def measured(rank: int, seconds_per_sample: float, workers: int) -> dict[str, Any]:
    """Three epochs at speeds of 4:2:1, by a clock that counts only stated seconds; each rank has other loader workers."""
    now = 0.0
    samples = Samples(84 * 10)
    team = Team(84, SpeedProportional(reallocate_every=4), warmup_steps=1)
    model = team.wrap(DDP(mlp()))
    batches = team.loader(samples, **({"num_workers": workers, "multiprocessing_context": "fork"} if rank == 1 else {}))
    taken, shares = [], []
    with patch.object(HostClock, "mark", lambda _: now):
        for _ in range(3):
            for x, y, places in batches:
                loss = mse_loss(model(x), y)
                now += seconds_per_sample * len(x) / PARTS[rank]
                loss.backward()
                taken.append((team.samples, places.tolist()))
                shares.append(team.shares)
    return {"taken": taken, "shares": shares, "exchanges": team.num_exchanges}


class Recording(SpeedProportional):
    """Keeps even shares, and what it observes."""

    def __init__(self) -> None:
        super().__init__(reallocate_every=1)
        object.__setattr__(self, "seen", [])

    def decide(self, state):
        return state.shares, state.v

    def observe(self, state, timings, epoch=0):
        self.seen.extend(tuple(c.seconds for c in timings) for _ in range(bool(timings)))
        return super().observe(state, timings, epoch)


def waits(rank: int) -> dict[str, Any]:
    """Two backward passes and a `mean` in each step, buffers of rank 0: a slow rank's time is not that of those who wait for it."""
    samples, data = Samples(28 * 8), Data(28 * 8, BATCH_SIZE)
    allocation = Recording()
    team = Team(BATCH_SIZE, allocation)

    def make() -> nn.Module:
        model = mlp()
        model.register_buffer("constant", torch.ones(1))
        return model

    model, alone = team.wrap(DDP(make())), make()
    worst = 0.0
    for (x, y, _), places in zip(team.loader(samples), serial_batches(data, 0), strict=True):
        time.sleep(0.02 * rank)
        for _ in range(2):
            model.zero_grad()
            alone.zero_grad()
            time.sleep(0.01 * rank)
            loss = mse_loss(model(x), y)
            team.mean(loss.detach())
            loss.backward()
            mse_loss(alone(samples.x[places]), samples.y[places]).backward()
            worst = max(worst, farthest(gradients(model), gradients(alone)))
    return {"error": worst, "seen": allocation.seen}


def settled(rank: int) -> dict[str, Any]:
    """OptPerf, which measures once every ten steps when it is settled, by a clock that counts only stated seconds."""
    samples = Samples(84 * 90)
    team = Team(84, OptPerf(probes=2, recheck_steps=10, dead_band=10.0), warmup_steps=0)
    model = team.wrap(DDP(mlp()))
    now, exchanges = 0.0, []
    with patch.object(HostClock, "mark", lambda _: now):
        for x, y, _ in team.loader(samples):
            loss = mse_loss(model(x), y)
            now += 1e-4 * len(x) / PARTS[rank]
            loss.backward()
            exchanges.append(team.num_exchanges)
    return {"exchanges": exchanges}


def resumed(rank: int) -> dict[str, Any]:
    """Saved after some steps, and read back with weights_only."""
    samples = Samples(300)
    places, saved = [], io.BytesIO()
    team = Team(28, SpeedProportional(reallocate_every=2), warmup_steps=0)
    model = team.wrap(DDP(mlp()))
    for step, (x, y, place) in enumerate(team.loader(samples, **WORKERS)):
        mse_loss(model(x), y).backward()
        places += place.tolist()[: team.samples]
        if step == 6:
            torch.save({"team": team.state_dict()}, saved)
            before = team.state_dict()
            break
    saved.seek(0)
    state = torch.load(saved, weights_only=True)["team"]
    other = Team(28, SpeedProportional(reallocate_every=2), warmup_steps=0)
    other.load_state_dict(state)
    batches = other.loader(samples)
    again = other.state_dict()
    for _, _, place in batches:
        places += place.tolist()[: other.samples]
    mismatched = ""
    try:
        Team(28, seed=1).load_state_dict(state)
        third = Team(28, seed=1)
        third.load_state_dict(state)
        third.loader(samples)
    except ValueError as error:
        mismatched = str(error)
    return {"before": before, "again": again, "places": places, "epoch": other.epoch, "mismatched": mismatched}


def traced(rank: int, folder: str) -> tuple[float, float]:
    """Two epochs of ten steps and a short one; the files are written when the process ends.

    Returns the seconds that it certainly computed, and those in which it may have: without `mean`, in which it waits for the others.
    """
    samples = Samples(84 * 10 + 21)
    team = Team(84, UNEVEN, trace=folder)
    model = team.wrap(DDP(mlp()))
    batches = team.loader(samples)
    least = most = 0.0
    for _ in range(2):
        ended = time.perf_counter()
        for x, y, _ in batches:
            began = time.perf_counter()
            loss = mse_loss(model(x), y)
            time.sleep(1e-3 * len(x))
            computed = time.perf_counter()
            team.mean(loss.detach())
            meant = time.perf_counter()
            loss.backward()
            least, most = least + computed - began, most + time.perf_counter() - meant + computed - ended
            time.sleep(0.001)
            ended = time.perf_counter()
    return least, most


def raised(act: Callable[[], Any]) -> str:
    try:
        act()
    except ValueError as error:
        return str(error)
    return ""


def refused(rank: int) -> dict[str, str]:
    """Sentences, on every rank."""
    samples = Samples(60)
    team = Team(BATCH_SIZE, UNEVEN)
    synced = DDP(nn.Sequential(nn.Linear(6, 6)))
    synced.module.append(nn.SyncBatchNorm(6))  # DDP itself takes it on GPUs only
    wrapped = Team(BATCH_SIZE, UNEVEN)
    wrapped.wrap(DDP(mlp()))
    timed = Team(BATCH_SIZE)
    return {
        "seed": raised(lambda: Team(BATCH_SIZE, seed=rank)),
        "small": raised(lambda: Team(2)),
        "name": raised(lambda: Team(BATCH_SIZE, "dps")),
        "parts": raised(lambda: Team(BATCH_SIZE, Fixed(parts=[1, 2]))),
        "bounds": raised(lambda: Team(BATCH_SIZE, max_samples=2)),
        "length": raised(lambda: Team(BATCH_SIZE).loader(Samples(60 + rank))),
        "sampler": raised(lambda: team.loader(samples, sampler=None)),
        "order": raised(lambda: team.loader(samples, num_workers=1, in_order=False)),
        "plain": raised(lambda: team.wrap(mlp())),
        "norm": raised(lambda: team.wrap(synced)),
        "twice": raised(lambda: wrapped.scale(torch.ones(()))),
        "timed": raised(lambda: timed.scale(torch.ones(()))),
        "early": raised(lambda: team.samples),
    }


def parallel_modules(rank: int) -> dict[str, float]:
    """Models that `wrap` does not take, with a scaled loss: FSDP2 and replicate."""
    from torch.distributed._composable.replicate import replicate
    from torch.distributed.fsdp import fully_shard

    worst = {}
    for name, shard in (("fully_shard", fully_shard), ("replicate", replicate)):
        samples, data = Samples(59), Data(59, BATCH_SIZE)
        team = Team(BATCH_SIZE, UNEVEN)
        model, alone = mlp(), mlp()
        mesh = dist.device_mesh.init_device_mesh("cpu", (3,))
        shard(model, **({"mesh": mesh} if name == "fully_shard" else {}))
        worst[name] = 0.0
        for (x, y, _), places in zip(team.loader(samples), serial_batches(data, 0), strict=True):
            model.zero_grad()
            alone.zero_grad()
            team.scale(mse_loss(model(x), y)).backward()
            mse_loss(alone(samples.x[places]), samples.y[places]).backward()
            whole = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in model.parameters()]
            worst[name] = max(worst[name], farthest(whole, gradients(alone)))
    return worst


class Summed(torch.autograd.Function):
    """The sum over all ranks; backwards, the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        total = value.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return Summed.forward(ctx, gradient.contiguous())


class GlobalNorm(nn.Module):
    """Batch norm over the samples of all ranks, as SyncBatchNorm computes it: a collective in the forward pass, and its transpose."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = torch.tensor(float(len(x)), dtype=x.dtype)
        total = Summed.apply(torch.cat([x.sum(dim=0), (x**2).sum(dim=0), count[None]]))
        number = total[-1]
        mean, square = total[: x.shape[1]] / number, total[x.shape[1] : -1] / number
        return (x - mean) / (square - mean**2 + 1e-5).sqrt()


def forward_collectives(rank: int) -> dict[str, float]:
    """Normalised over all ranks: exact with a scaled loss, and wrong with the hook."""
    worst = {}
    for name in ("scale", "hook"):
        samples, data = Samples(56), Data(56, BATCH_SIZE)
        team = Team(BATCH_SIZE, UNEVEN)

        def make(norm: nn.Module) -> nn.Module:
            torch.manual_seed(3)
            return nn.Sequential(nn.Linear(6, 8), norm, nn.Linear(8, 2)).double()

        model, alone = DDP(make(GlobalNorm())), make(nn.BatchNorm1d(8, affine=False, track_running_stats=False))
        if name == "hook":
            team.wrap(model)
        worst[name] = 0.0
        for (x, y, _), places in zip(team.loader(samples), serial_batches(data, 0), strict=True):
            model.zero_grad()
            alone.zero_grad()
            loss = mse_loss(model(x), y)
            (team.scale(loss) if name == "scale" else loss).backward()
            mse_loss(alone(samples.x[places]), samples.y[places]).backward()
            worst[name] = max(worst[name], farthest(gradients(model), gradients(alone)))
    return worst


def autocast(rank: int) -> float:
    """bfloat16 in the forward pass: the relative error of the gradient, which is that of bfloat16 itself."""
    samples = Samples(56, torch.float32)
    team = Team(BATCH_SIZE, UNEVEN)
    model, alone = team.wrap(DDP(mlp(torch.float32))), mlp(torch.float32)
    worst = 0.0
    for (x, y, _), places in zip(team.loader(samples), serial_batches(Data(56, BATCH_SIZE), 0), strict=True):
        model.zero_grad()
        alone.zero_grad()
        for trained, inputs, targets in ((model, x, y), (alone, samples.x[places], samples.y[places])):
            with torch.autocast("cpu", torch.bfloat16):
                loss = mse_loss(trained(inputs).float(), targets)
            loss.backward()
        largest = max(float(g.abs().max()) for g in gradients(alone))
        worst = max(worst, farthest(gradients(model), gradients(alone)) / largest)
    return worst


def all_laws(rank: int, folder: str) -> dict[str, Any]:
    """Each by its name, and the seconds that it took."""
    torch._dynamo.config.cache_size_limit = 64
    compiled = {"change": lambda model: torch.compile(model, backend="aot_eager")}
    laws: dict[str, Callable[[], Any]] = {
        "serial": against_serial,
        "workers": lambda: against_serial(loader=WORKERS),
        "bucket_view": lambda: against_serial(wrapped={"gradient_as_bucket_view": True}),
        "unused": lambda: against_serial(SometimesUnused, wrapped={"find_unused_parameters": True}),
        "static_graph": lambda: against_serial(wrapped={"static_graph": True}),
        "buckets": lambda: against_serial(wrapped={"bucket_cap_mb": 1e-4}),
        "f32": lambda: against_serial(dtype=torch.float32, make=lambda: mlp(torch.float32)),
        "fp16_hook": lambda: against_serial(dtype=torch.float32, make=lambda: mlp(torch.float32), hook=hooks.fp16_compress_hook),
        "clip": lambda: against_serial(clip=0.1),
        "scaler": lambda: against_serial(scaler=True),
        "compiled": lambda: against_serial(**compiled),
        "compiled_inside": lambda: against_serial(make=lambda: torch.compile(mlp(), backend="aot_eager")),
        "autocast": lambda: autocast(rank),
        "zero_weight": lambda: zero_weight(rank),
        "even": lambda: even_is_ddp(rank),
        "scale": lambda: scale_is_the_hook(rank),
        "tokens": lambda: tokens(rank),
        "windows": lambda: windows(rank),
        "measured": lambda: measured(rank, 2e-3, workers=2),
        "waits": lambda: waits(rank),
        "settled": lambda: settled(rank),
        "resumed": lambda: resumed(rank),
        "refused": lambda: refused(rank),
        "traced": lambda: traced(rank, f"{folder}/uneven"),
        "parallel": lambda: parallel_modules(rank),
        "forward_collectives": lambda: forward_collectives(rank),
    }
    return found_by(laws)
