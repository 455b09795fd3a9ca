"""Fill in what a page of these docs quotes from the code: a test compares, so it cannot drift.

    python docs/refresh.py        rewrites docs/reference/methods.md and docs/reference/cluster.md

`<!-- source: package.module:Class.function -->` is followed by that function's source, `<!-- methods -->` by the table of
methods; each ends at `<!-- end -->`.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from functools import reduce
from pathlib import Path

from hetsim.config.methods import shipped

PAGES = [Path(__file__).parent / "reference" / name for name in ("methods.md", "cluster.md")]
BLOCK = re.compile(r"<!-- (methods|source: [\w.:]+) -->\n.*?<!-- end -->", flags=re.DOTALL)


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


def refreshed(text: str) -> str:
    """The page with every block as the code is now."""

    def block(match: re.Match[str]) -> str:
        kind, _, name = match[1].partition(": ")
        return f"<!-- {match[1]} -->\n{source(name) if kind == 'source' else methods()}\n<!-- end -->"

    return BLOCK.sub(block, text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(refreshed(page.read_text(encoding="utf-8")), encoding="utf-8")
