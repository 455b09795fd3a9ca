"""Translate a question that names GPUs, such as `'2*a100-40gb + 4*t4' model=resnet50 network='1 Gbit/s'`, to hetsim arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hetsim import checks
from hetsim.catalogue.tables import shipped
from hetsim.config.typed import as_typed

OF_CATALOGUE = {"model": "model", "precision": "precision", "catalogue": "file"}
"""Arguments for named GPUs, each with the key of cluster.catalogue that it sets."""
OF_MACHINES = ("network", "inside")
MACHINE = re.compile(r"(?:(?P<copies>\d{1,6})\s*x\s*)?\(?\s*(?:(?P<gpus>\d{1,6})\s*\*\s*)?(?P<name>[A-Za-z0-9][\w.-]*)\s*\)?")
EXAMPLE = "'2*a100-40gb + 4*t4' model=resnet50 network='1 Gbit/s'"


def spelled_out(words: Sequence[str]) -> list[str]:
    """The arguments with a cluster instead of the named GPUs, and with `method=ddp` if they name no method.

    Raises ValueError for invalid arguments.
    """
    named = [word for word in words if _names_gpus(word)]
    own = {key: value for word in words for key, value in [_parted(word)] if key in (*OF_CATALOGUE, *OF_MACHINES)}
    if not named:
        if own:
            raise ValueError(f"{next(iter(own))}=… goes with GPUs that are named: write hetsim-advise {EXAMPLE}")
        return [*words]
    if len(named) > 1:
        raise ValueError(f"GPUs are named twice: write them in one word, such as {EXAMPLE}")
    for key in ("model", "network"):
        if key not in own:
            raise ValueError(f"{named[0]} needs {key}=…: write hetsim-advise {EXAMPLE}")
    rates = {key: own[key] for key in OF_MACHINES if key in own}
    machines = [_machine(part.strip(), rates) for part in named[0].split("+")]
    kept = [word for word in words if word not in named and _parted(word)[0] not in own]
    catalogue = [f"+cluster.catalogue.{OF_CATALOGUE[key]}={as_typed(value)}" for key, value in own.items() if key in OF_CATALOGUE]
    workload = [] if any(_parted(word)[0] == "workload" for word in kept) else ["workload=phantom"]
    method = [] if any(_parted(word)[0] == "method" for word in kept) else ["method=ddp"]
    return ["cluster=machines", f"cluster.machines={as_typed(machines)}", *catalogue, *workload, *kept, *method]


def _parted(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    return (key, value) if equals else ("", "")


def _names_gpus(word: str) -> bool:
    if "=" in word or word.startswith("~"):
        return False
    first = MACHINE.fullmatch(word.split("+")[0].strip())
    names = {each for gpu in shipped().gpus.values() for each in (gpu.name, *gpu.aliases)}
    return "*" in word or "+" in word or (first is not None and first["name"].lower() in names)


def _machine(text: str, rates: dict[str, str]) -> dict[str, object]:
    found = MACHINE.fullmatch(text)
    if found is None:
        raise ValueError(f"{checks.shown(text)} is not a machine: write 4*t4 for one with four GPUs, 8x(4*t4) for eight of them")
    gpus, copies = int(found["gpus"] or 1), int(found["copies"] or 1)
    own = {key: value for key, value in rates.items() if key != "inside" or gpus > 1}
    return {**({"count": copies} if copies > 1 else {}), "gpus": {found["name"]: gpus}, **own}
