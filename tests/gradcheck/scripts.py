"""Small training scripts, right and wrong, as people write them."""

from __future__ import annotations

import textwrap

SCRIPT = """
import contextlib, random, torch, torch.distributed as dist, torch.distributed.nn, torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset
{imports}
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
{data}
{model}
optimizer = {optimizer}
for epoch in range(8):
    for step, (X, Y) in enumerate(loader):
{loop}
"""
DATA = """
x = torch.randn(96, 4)
y = x.exp().sum(1)
data = TensorDataset(x, y)
loader = DataLoader(data, 4, sampler=DistributedSampler(data))
"""
MODEL = """
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
model = DDP(net)
"""
STEP = """
optimizer.zero_grad()
loss = F.mse_loss(model(X)[:, 0], Y)
loss.backward()
optimizer.step()
"""
MANUAL = """
optimizer.zero_grad()
F.mse_loss(net(X)[:, 0], Y).backward()
for p in net.parameters():
    dist.all_reduce(p.grad)
    p.grad /= size
optimizer.step()
"""
WINDOW = """
last = step % 3 == 2
with contextlib.nullcontext() if last else model.no_sync():
    (F.mse_loss(model(X)[:, 0], Y) / 3).backward()
if last:
    optimizer.step()
    optimizer.zero_grad()
"""
TOKENS = """
g = torch.Generator().manual_seed(3)
data = [(torch.randint(0, 11, (length,), generator=g),) * 2 for length in torch.randint(2, 30, (96,), generator=g).tolist()]
def collate(rows):
    ids = nn.utils.rnn.pad_sequence([row for row, _ in rows], batch_first=True, padding_value=-100)
    return ids[:, :-1].clamp(min=0), ids[:, 1:]
loader = DataLoader(data, 4, sampler=DistributedSampler(data), collate_fn=collate{options})
"""
LANGUAGE = "net = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))\nmodel = DDP(net)"
TOKEN_MEAN = STEP.replace("F.mse_loss(model(X)[:, 0], Y)", "F.cross_entropy(model(X).transpose(1, 2), Y)")
TOKEN_SUM = """
number = (Y != -100).sum()
dist.all_reduce(number)
optimizer.zero_grad()
(F.cross_entropy(model(X).transpose(1, 2), Y, reduction="sum") * size / number).backward()
optimizer.step()
"""
TOKENS_BY_STEPS = """
number = (Y != -100).sum()
dist.all_reduce(number)
(F.cross_entropy(model(X).transpose(1, 2), Y, reduction="sum") * size / number / 2).backward()
if step % 2:
    optimizer.step()
    optimizer.zero_grad()
"""
TOKENS_OF_WINDOW = """
held = [] if step % 2 == 0 else held
held.append((X, Y))
if step % 2:
    number = sum((Y != -100).sum() for _, Y in held)
    dist.all_reduce(number)
    for X, Y in held:
        (F.cross_entropy(model(X).transpose(1, 2), Y, reduction="sum") * size / number).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CLIPPED_FIRST = """
optimizer.zero_grad()
with model.no_sync():
    (100 * F.mse_loss(model(X)[:, 0], Y)).backward()
nn.utils.clip_grad_norm_(net.parameters(), 1.0)
for p in net.parameters():
    dist.all_reduce(p.grad)
    p.grad /= size
optimizer.step()
"""
GAN = """
real = torch.cat([X, Y[:, None]], 1)
optimizer_d.zero_grad()
(F.softplus(critic(model(X).detach())).mean() + F.softplus(-critic(real[:, :1])).mean()).backward()
optimizer_d.step()
optimizer.zero_grad()
F.softplus(-critic(model(X))).mean().backward()
optimizer.step()
"""
CRITIC = """
critic = DDP(nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)))
optimizer_d = torch.optim.SGD(critic.parameters(), lr=0.01)
"""
CLOSURE = """
def closure():
    optimizer.zero_grad()
    loss = F.mse_loss(model(X)[:, 0], Y)
    loss.backward()
    return loss
optimizer.step(closure)
"""
PARTS = """
for part, target in zip(X.split(2), Y.split(2)):
    optimizer.zero_grad()
    F.mse_loss(model(part)[:, 0], target).backward()
    optimizer.step()
"""
SCALED = """
optimizer.zero_grad()
scaler.scale(F.mse_loss(model(X)[:, 0], Y)).backward()
scaler.step(optimizer)
scaler.update()
"""
AUTOCAST = """
optimizer.zero_grad()
with torch.autocast("cpu", torch.bfloat16):
    out = model(X)
F.mse_loss(out[:, 0].float(), Y).backward()
optimizer.step()
"""
CENTRED = """
centre = centre if epoch or step else torch.zeros(())
optimizer.zero_grad()
((model(X)[:, 0] - Y - centre) ** 2).mean().backward()
optimizer.step()
total = Y.sum()
dist.all_reduce(total)
centre = 0.9 * centre + 0.1 * total / (len(Y) * size)
"""
GROUPS = 'torch.optim.SGD([{"params": [*net[0].parameters()]}, {"params": [*net[2].parameters(), *extra.parameters()]}], lr=0.01)'
STREAM = """
class Stream(IterableDataset):
    def __iter__(self):
        g = torch.Generator().manual_seed(rank)
        for _ in range(60):
            row = torch.randn({columns}, generator=g)
            yield row, row.exp().sum({axis})
loader = DataLoader(Stream(), {batch})
"""
TEAM = """
from hetsim import Team
"""
TEAM_LOOP = """
optimizer.zero_grad()
{loss}.backward()
team.step()
"""
PREFETCHED = """
def ahead(loader):
    batches = iter(loader)
    batch = next(batches)
    for following in batches:
        yield batch
        batch = following
    yield batch
loader = ahead(loader)
"""


def script(
    loop: str = STEP, *, imports: str = "", data: str = DATA, model: str = MODEL,
    optimizer: str = "torch.optim.SGD(net.parameters(), lr=0.01)",
) -> str:  # fmt: skip
    """The text of a script."""
    return SCRIPT.format(imports=imports, data=data, model=model, optimizer=optimizer, loop=textwrap.indent(loop, " " * 8))


def edited(text: str, *changes: tuple[str, str]) -> str:
    """The text with these changes, each of which it contains."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text
