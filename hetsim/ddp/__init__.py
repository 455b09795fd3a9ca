"""The former place of a Team."""


def __getattr__(name: str) -> None:
    if name.startswith("__"):
        raise AttributeError(name)
    raise ImportError(
        "hetsim.ddp.Team is hetsim.Team now: write `from hetsim import Team`, `team = Team(model, optimizer, batch_size=…, allocation=…)`, "
        "`team.share(losses).backward()` and `team.step()`, as in docs/guide/your-loop.md"
    )
