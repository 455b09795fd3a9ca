"""Fill in what a page of these docs quotes from the code: a test compares, so it cannot drift.

    python docs/refresh.py        rewrites the pages below

`<!-- source: package.module:Class.function -->` is followed by that function's source, `<!-- methods -->` by the table of methods,
`<!-- groups -->` by that of the groups of choices,
`<!-- help: hetsim-COMMAND -->` by what the command prints for --help, `<!-- run: hetsim-COMMAND WORDS -->` by its output,
`<!-- catalogue: TABLE -->` by a table of GPUs, models, sources, errors or comparisons; each ends at `<!-- end -->`. The outputs of the
notebook are docs/notebooks.py's: it trains, and its measured numbers always change.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import os
import re
import runpy
import shlex
import sys
import textwrap
from functools import cache, reduce
from pathlib import Path
from typing import Any
from unittest import mock

from hetsim.catalogue.shown import gpu_cells, model_cells
from hetsim.catalogue.tables import shipped_catalogue
from hetsim.config.arguments import ABOUT
from hetsim.config.methods import shipped
from hetsim.trust.shipped import names

PAGES = [Path(__file__).parent / "reference" / name for name in ("methods.md", "config.md", "cluster.md", "commands.md", "catalogue.md")]
BLOCK = re.compile(r"<!-- (methods|groups|source: [\w.:]+|help: [\w-]+|run: [\w -]+|catalogue: \w+) -->\n.*?<!-- end -->", flags=re.DOTALL)


def source(name: str) -> str:
    """The source of package.module:Class.function, without its docstring."""
    module, _, path = name.partition(":")
    found = reduce(getattr, path.split("."), importlib.import_module(module))
    text = textwrap.dedent(inspect.getsource(found))
    doc = found.__doc__
    if doc and inspect.isfunction(found):
        text = re.sub(r'\n +""".*?"""\n', "\n", text, count=1, flags=re.DOTALL)
    return f"```python\n{text.rstrip()}\n```"


def methods() -> str:
    """The table of methods: name, line, source, what it is made of, the rates that it ships."""
    lines = ["| method | what it is | published | made of | rates |", "|---|---|---|---|---|"]
    lines += [f"| `{m.name}` | {m.about} | {m.paper} | `{m.composes}` | `{m.rates}` |" for m in shipped()]
    return "\n".join(lines)


def groups() -> str:
    """The table of groups: what a choice decides, and the names of the choices."""
    rows = [f"| `{group}` | {about} | {' · '.join(f'`{name}`' for name in names(group))} |" for group, about in ABOUT.items()]
    return "\n".join(["| group | what a choice decides | choices |", "|---|---|---|", *rows])


def help_of(command: str) -> str:
    """What a command prints for --help, in 100 columns."""
    return output_of(f"{command} --help")


def output_of(line: str) -> str:
    """What a command of the package prints for these words."""
    command, *_ = words = shlex.split(line)
    module = importlib.import_module(f"hetsim.cli.{command.removeprefix('hetsim-').replace('-', '_')}")
    printed = io.StringIO()
    with (
        mock.patch.object(sys, "argv", words),
        mock.patch.dict(os.environ, COLUMNS="100"),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        module.main()
    return f"```text\n{printed.getvalue().rstrip()}\n```"


def catalogue(table: str) -> str:
    """A table of the catalogue, of its estimates' errors, or of comparisons with other programs."""
    its = shipped_catalogue()
    if table == "sources":
        cells = [["source", "rows", "what", "version", "licence", "how it was measured"]]
        for each in its.sources.values():
            rows = sum(row.source == each.name for row in its.rows)
            cells.append([each.name, str(rows), f"[{each.title}]({each.url})", f"{each.commit}, {each.date}", each.licence, each.how])
    elif table == "gpus":
        cells = gpu_cells(its, [*its.gpus.values()])
        cells[0].append("figures from")
        for row, gpu in zip(cells[1:], its.gpus.values(), strict=True):
            row.append(f"[{gpu.source}]({gpu.url})" if gpu.url else "")
    elif table == "models":
        cells = model_cells(its, [*its.models.values()])
    else:
        cells = benchmark()[f"{table}_cells"]()
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], "|" + "---|" * len(cells[0]), *lines[1:]])


@cache
def benchmark() -> dict[str, Any]:
    """The names of `benchmarks/catalogue.py`."""
    return runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "catalogue.py"))


def refreshed(text: str) -> str:
    """The page with every block as the code is now."""

    def block(match: re.Match[str]) -> str:
        kind, _, name = match[1].partition(": ")
        named, whole = {"source": source, "help": help_of, "run": output_of, "catalogue": catalogue}, {"methods": methods, "groups": groups}
        text = named[kind](name) if name else whole[kind]()
        return f"<!-- {match[1]} -->\n{text}\n<!-- end -->"

    return BLOCK.sub(block, text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(refreshed(page.read_text(encoding="utf-8")), encoding="utf-8")
