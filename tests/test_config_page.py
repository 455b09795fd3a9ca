"""docs/reference/config.md lists every key of conf/config.yaml, and every choice. The tables of keys list them, too."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pages
import yaml

from hetsim.config.schema import GROUPS
from hetsim.files.keys import PLAIN
from hetsim.runtime.experiment import Experiment
from hetsim.trust.shipped import configs

CONFIG: dict[str, Any] = yaml.safe_load((configs() / "config.yaml").read_text(encoding="utf-8"))


def test_every_key_of_a_run_is_in_the_table_with_its_default() -> None:
    """A reference to another key is shown as this key."""
    (table,) = re.findall(r"## Keys of a run\n(.*?)\n## ", pages.text("config.md"), flags=re.DOTALL)
    rows = [[cell.strip() for cell in row.split("|")[1:3]] for row in re.findall(r"^\| `.*", table, flags=re.MULTILINE)]
    listed = {}
    for keys, defaults in rows:
        names, values = re.findall(r"`([\w.]+)`", keys), re.sub(r"[`]", "", defaults).split(", ")
        listed |= dict(zip(names, values * len(names) if len(values) == 1 else values, strict=False))

    assert listed == {
        f"{name}.{key}" if key else name: yaml.safe_dump(value).split("\n")[0].strip("'").removeprefix("${").removesuffix("}")
        for name, entry in CONFIG.items()
        if name not in ("defaults", "hydra")
        for key, value in (entry.items() if isinstance(entry, dict) else [("", entry)])
    }


def test_every_key_of_a_run_is_in_a_table_of_keys() -> None:
    """Those of an Experiment are its fields with plain values, so a new field is read from the config."""
    plain = {field.name for field in fields(Experiment) if re.fullmatch(r"(str|int|float|bool)( \| None)?", str(field.type))}

    assert CONFIG.keys() - {*PLAIN, *GROUPS} == {"defaults", "hydra"}
    assert {key for key, kind in PLAIN.items() if kind.is_of_experiment} == plain
