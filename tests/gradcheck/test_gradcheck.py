"""`hetsim-ddp-check` finds right scripts right and wrong ones wrong, with or without hetsim in them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from processes import forking
from scripts import (
    AUTOCAST,
    CENTRED,
    CLIPPED_FIRST,
    CLOSURE,
    CRITIC,
    DATA,
    GAN,
    GROUPS,
    LANGUAGE,
    MANUAL,
    MODEL,
    PARTS,
    PREFETCHED,
    SCALED,
    STEP,
    STREAM,
    TEAM,
    TEAM_LOOP,
    TOKEN_MEAN,
    TOKEN_SUM,
    TOKENS,
    TOKENS_BY_STEPS,
    TOKENS_OF_WINDOW,
    WINDOW,
    edited,
    script,
)  # fmt: skip

from hetsim.cli.ddp_check import Script, check
from hetsim.gradcheck import launched, verdict
from hetsim.gradcheck.turning import VARIABLE

FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard"
HOOKS = "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks"
FLAT = edited(MODEL, ("DDP(net)", 'FullyShardedDataParallel(net, device_id=torch.device("cpu"))'))
SHARDED = "net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))\nfully_shard(net)\nmodel = net"
TEAM_DATA = "x = torch.randn(200, 4)\ndata = TensorDataset(x, x.exp().sum(1))"
TEAM_MODEL = (
    MODEL + "team = Team(model, torch.optim.SGD(net.parameters(), lr=0.01), batch_size=12{options})\nloader = team.loader(data{loader})"
)
TEAM_WINDOW = edited(TEAM_LOOP, ("optimizer.zero", "if step % 2 == 0: optimizer.zero"), ("team.step", "if step % 2: team.step"))
TEAM_OPTIMIZER = "team._optimizer"
SHARED = 'team.share(F.mse_loss(model(X)[:, 0], Y, reduction="none"))'
TEAM_TOKENS = TOKENS.partition("loader =")[0]
TEAM_LANGUAGE = LANGUAGE + TEAM_MODEL.removeprefix(MODEL).replace("{loader}", ", collate_fn=collate").join(["\n", ""])


def team(
    loss: str = SHARED, *, options: str = "", loader: str = "", data: str = TEAM_DATA, model: str = TEAM_MODEL, loop: str = TEAM_LOOP,
    imports: str = TEAM,
) -> str:  # fmt: skip
    """A script with a hetsim.Team."""
    loop = loop.replace("{loss}", loss)
    return script(loop, imports=imports, data=data, model=model.format(options=options, loader=loader), optimizer=TEAM_OPTIMIZER)


RIGHT = verdict.RIGHT
TOKEN_DATA = TOKENS.format(options="")
TABLE = {
    # right
    "plain DDP": (script(), RIGHT),
    "manual all-reduce": (script(MANUAL), RIGHT),
    "FSDP2": (script(imports=FSDP, model=SHARDED), RIGHT),
    "accumulation of means over samples": (script(WINDOW), RIGHT),
    "accumulation, and a loop that looks ahead": (script(WINDOW, data=DATA + PREFETCHED), RIGHT),
    "means over all tokens": (script(TOKEN_SUM, data=TOKEN_DATA, model=LANGUAGE), RIGHT),
    "means over all tokens of a window": (script(TOKENS_OF_WINDOW, data=TOKEN_DATA, model=LANGUAGE), RIGHT),
    "loader workers": (script(data=edited(DATA, ("data, 4,", "data, 4, num_workers=2, persistent_workers=True,"))), RIGHT),
    "iterable dataset": (script(data=STREAM.format(columns=4, axis=-1, batch=4)), RIGHT),
    "iterable dataset of batches": (script(data=STREAM.format(columns="4, 4", axis=-1, batch=None)), RIGHT),
    "clip": (script(edited(STEP, ("optimizer.step", "nn.utils.clip_grad_norm_(net.parameters(), .1)\noptimizer.step"))), RIGHT),
    "dropout": (script(model=edited(MODEL, ("nn.Tanh()", "nn.Dropout(0.5)"))), RIGHT),
    "GradScaler": (
        script(SCALED, optimizer='torch.optim.Adam(net.parameters(), fused=True)\nscaler = torch.amp.GradScaler("cpu")'),
        RIGHT,
    ),
    "closure": (script(CLOSURE), RIGHT),
    "autocast": (script(AUTOCAST), RIGHT),
    "compiled": (
        script(model=edited(MODEL, ("nn.Tanh()", "nn.Tanh(), nn.Dropout(0.5)"), ("DDP(net)", 'torch.compile(DDP(net), backend="eager")'))),
        RIGHT,
    ),
    "frozen and unused parameters, two groups": (
        script(
            model=edited(MODEL, ("model =", "net[0].weight.requires_grad_(False)\nextra = nn.Linear(2, 2)\nmodel =")),
            optimizer=GROUPS,
        ),
        RIGHT,
    ),
    "GAN": (script(GAN, model=MODEL + CRITIC), RIGHT),
    "one step an epoch": (script(data=edited(DATA, ("(96, 4)", "(8, 4)"))), RIGHT),
    "evaluation between": (script(STEP + "with torch.no_grad():\n    for a, b in DataLoader(data, 24): net(a)\n"), RIGHT),
    "a mean that is kept from step to step": (script(CENTRED), RIGHT),
    "a Team of unreduced losses": (team(), RIGHT),
    "a Team with accumulation": (
        team(loop=TEAM_WINDOW, options=", accumulate=2", loader=", num_workers=2"),
        RIGHT,
    ),
    "a Team whose batch size depends on the number of processes": (team(model=edited(TEAM_MODEL, ("=12", "=6 * size"))), RIGHT),
    "a Team with bounds": (team(options=", max_samples=8"), RIGHT),
    "a Team rightly verified": (team("team.share(F.mse_loss(model(X)[:, 0], Y))", options=", verified=True"), RIGHT),
    "a Team of tokens": (
        team(
            'team.share(F.cross_entropy(model(X).transpose(1, 2), Y, reduction="none"), mask=Y != -100)',
            data=TEAM_TOKENS,
            model=TEAM_LANGUAGE,
        ),
        RIGHT,
    ),
    "a Team of fully_shard": (team(model=edited(TEAM_MODEL, (MODEL, SHARDED + "\n")), imports=TEAM + FSDP), RIGHT),
    # wrong
    "mean of means over unequal tokens": (script(TOKEN_MEAN, data=TOKEN_DATA, model=LANGUAGE), verdict.MEANS),
    "means over tokens, divided by steps": (
        script(TOKENS_BY_STEPS, data=TOKEN_DATA, model=LANGUAGE),
        verdict.STEPS_NOT_TOKENS.format(k=2),
    ),
    "a sum": (script(edited(STEP, ("Y)", 'Y, reduction="sum")'))), verdict.SHRUNK.format(n=2)),
    "gradients that are added up": (script(edited(MANUAL, ("    p.grad /= size\n", ""))), verdict.SUMMED.format(n=2)),
    "a loss that is counted twice": (
        script(edited(STEP, ("loss.backward", "loss = dist.nn.all_reduce(loss)\nloss.backward"))),
        verdict.SUMMED.format(n=2),
    ),
    "a factor": (script(edited(STEP, ("loss.backward", "(loss * (1 if size == 1 else 0.7)).backward"))), verdict.SCALED.format(c=0.7)),
    "a clip before the reduction": (script(CLIPPED_FIRST), verdict.CLIPPED),
    "the module of DDP": (script(edited(STEP, ("model(X)", "model.module(X)"))), verdict.UNREDUCED),
    "no_sync": (script("with model.no_sync():" + STEP.replace("\n", "\n    ")), verdict.UNREDUCED),
    "random numbers": (script(edited(STEP, ("model(X)", "model(X + torch.randn_like(X))"))), verdict.RANDOM),
    "batch norm": (script(model=edited(MODEL, ("nn.Tanh()", "nn.BatchNorm1d(8)"))), verdict.NORMALISED),
    "no sampler": (script(data=edited(DATA, ("sampler=DistributedSampler(data)", "shuffle=False"))), verdict.SAME),
    "other weights on each rank": (
        script(MANUAL, data=DATA + "torch.manual_seed(rank)", model=edited(MODEL, ("model = DDP(net)", ""))),
        verdict.UNEQUAL,
    ),
    "pairs of samples": (
        script(edited(STEP, ("F.mse_loss(model(X)[:, 0], Y)", "F.cross_entropy(model(X) @ model(X).T, torch.arange(len(X)))"))),
        verdict.MEANS,
    ),
    "a reduction in 16 bits": (
        script(imports=HOOKS, model=MODEL + "model.register_comm_hook(None, default_hooks.fp16_compress_hook)"),
        verdict.MEANS + verdict.COMPRESSED,
    ),
    "a Team wrongly verified": (
        team(
            "team.share(F.cross_entropy(model(X).transpose(1, 2), Y))",
            options=", verified=True",
            data=TEAM_TOKENS,
            model=TEAM_LANGUAGE,
        ),
        verdict.STATED,
    ),
    # neither
    "equal samples": (script(data=edited(DATA, ("torch.randn(96, 4)", "torch.ones(96, 4)"))), verdict.ALIKE),
    "no gradient": (script(edited(STEP, ("loss.backward", "(0 * loss).backward"))), verdict.ZERO),
    "no loader": (
        script(data="x = torch.randn(96, 4)[rank::size]\nloader = [(x[i:i + 4], x[i:i + 4].exp().sum(1)) for i in range(0, len(x), 4)]"),
        verdict.NO_LOADER,
    ),
    # refused
    "parts of a batch": (script(PARTS), "several processes make 2 steps with a batch, and one makes 4"),
    "steps by the number of processes": (
        script(edited(WINDOW, ("step % 3 == 2", "step % (6 // size) == 0"))),
        "several processes step after 1, 4, 7, … batches, and one after 1, 7, 13, …",
    ),
    "no process group": (
        script(
            edited(STEP, ("model(X)", "net(X)")),
            data="dist.destroy_process_group()" + DATA.replace("sampler=DistributedSampler(data)", ""),
            model=edited(MODEL, ("model = DDP(net)", "")),
        ),
        "each of the 2 processes trains by itself",
    ),
    "other samples of a Team": (
        team(data=edited(TEAM_DATA, ("exp().sum(1))", "exp().sum(1) * size)"))),
        "a Team draws other samples in one process than in several",
    ),
    "FSDP1": (script(imports=FSDP, model=FLAT), "use fully_shard"),
    "no step": (script(edited(STEP, ("optimizer.step()", ""))), "has ended without a step"),
    "a Team that trains locally": (team(options=', method="diloco"'), "check the script with method=ddp"),
}
QUICK = {"plain DDP", "means over tokens, divided by steps", "a Team wrongly verified", "the module of DDP"}
"""The scripts of each run of the tests."""


class Forked(Script):
    """A script whose ranks are forks."""

    def _start(self, folder: Path, size: int) -> None:
        context: Any = forking("torch.nn.parallel", "torch.distributed.fsdp", "hetsim.gradcheck.watch", "hetsim.loop")
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        ranks = [context.Process(target=run_rank, args=(rank, size, store.port, str(folder), list(self.words))) for rank in range(size)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(120)
            assert rank.exitcode is not None
        self.raise_refused(folder)


def run_rank(rank: int, size: int, port: int, folder: str, words: list[str]) -> None:
    """What torchrun starts."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1")
    os.environ.update({"MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "tests", "TORCHELASTIC_USE_AGENT_STORE": "True", VARIABLE: folder})
    sys.argv = ["launched", *words]
    launched.run_rank(os.getppid())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in TABLE])
def test_the_verdict_of_each_script(name: str, tmp_path: Path) -> None:
    """Right, or wrong with the line of advice, or a proof of nothing, or a sentence why it cannot be checked."""
    text, expected = TABLE[name]
    (tmp_path / "script.py").write_text(text, encoding="utf-8")
    try:
        result = check(Forked([str(tmp_path / "script.py")], 2, 10.0, tmp_path))
    except ValueError as error:
        result = verdict.Verdict(f"refused\n{error}", right=False)
    conclusions = [line for line in result.text.splitlines()[1:] if not line.startswith("  ")]

    assert expected in conclusions[0], result.text
    assert result.right == (expected == RIGHT)
    assert conclusions[1:] == ([verdict.FROZEN + RIGHT] if name == "batch norm" else [])
