"""The former place of Balanced."""


def __getattr__(name: str) -> None:
    if name.startswith("__"):
        raise AttributeError(name)
    raise ImportError("hetsim.ddp.trainer.Balanced is hetsim.Balanced now: write `from hetsim import Balanced`")
