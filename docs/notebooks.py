"""The notebook of these docs: its outputs, and its page of the site. Neither needs Jupyter.

    python docs/notebooks.py        runs start/notebook.ipynb and stores what its cells print and show

A cell with the tag `measured` depends on this machine. A cell with the tag `slow` takes seconds.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import tempfile
from html import escape
from pathlib import Path
from typing import Any

from myst_parser.parsers.sphinx_ import MystParser

NOTEBOOK = Path(__file__).parent / "start" / "notebook.ipynb"
FENCE = "~" * 8


def read(path: Path = NOTEBOOK) -> dict[str, Any]:
    """A notebook."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def tags(cell: dict[str, Any]) -> list[str]:
    """The tags of a cell."""
    return list(cell["metadata"].get("tags", []))


def outputs(code: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Run a cell, and return its outputs as Jupyter stores them: the printed lines, and the value of an expression in the last line."""
    *body, last = ast.parse(code).body
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        if isinstance(last, ast.Expr):
            exec(compile(ast.Module(body, []), "<cell>", "exec"), names)
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
        else:
            exec(compile(ast.Module([*body, last], []), "<cell>", "exec"), names)
    found: list[dict[str, Any]] = []
    if printed.getvalue():
        found.append({"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(keepends=True)})
    if value is not None:
        data: dict[str, Any] = {}
        if hasattr(value, "_repr_png_"):
            data["image/png"] = base64.b64encode(value._repr_png_()).decode()
        if hasattr(value, "_repr_html_") and (shown := value._repr_html_()) is not None:
            data["text/html"] = shown.splitlines(keepends=True)
        data["text/plain"] = repr(value).splitlines(keepends=True)
        found.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return found


def execute(notebook: dict[str, Any], *, without: str | None = None) -> None:
    """Run the cells in order in an empty folder, and replace their outputs. Cells with the tag `without` are not run."""
    names: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for number, cell in enumerate((cell for cell in notebook["cells"] if cell["cell_type"] == "code"), 1):
            if without not in tags(cell):
                cell["execution_count"], cell["outputs"] = number, outputs("".join(cell["source"]), names, number)


def in_markdown(notebook: dict[str, Any]) -> str:
    """A notebook as a page of the site: code, and each output in its richest form."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(f"{FENCE}python\n{source}\n{FENCE}" if cell["cell_type"] == "code" else source)
        for output in cell.get("outputs", ()):
            data = {kind: "".join(text) for kind, text in output.get("data", {"text/plain": output.get("text", "")}).items()}
            plain = data["text/plain"].rstrip("\n")
            if "text/html" in data:
                html = data["text/html"]
            elif "image/png" in data:
                html = f'<img alt="{escape(plain)}" src="data:image/png;base64,{data["image/png"]}">'
            else:
                parts.append(f"{FENCE}text\n{plain}\n{FENCE}")
                continue
            parts.append(f'{FENCE}{{raw}} html\n<div class="shown">\n{html}\n</div>\n{FENCE}')
    return "\n\n".join(parts)


class Notebook(MystParser):
    """The parser of notebooks. It runs nothing."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: Any) -> None:
        """Parse a notebook into a document."""
        download = f"{{download}}`Download this notebook <{Path(document['source']).name}>`."
        super().parse(f"{in_markdown(json.loads(inputstring))}\n\n{download}\n", document)


if __name__ == "__main__":
    notebook = read()
    execute(notebook)
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
