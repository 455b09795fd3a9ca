"""The notebook of the docs is true: its cells print and show what is stored, and its page shows that."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from pages import DOCS, loaded

pytest.importorskip("myst_parser")
notebooks = loaded(DOCS / "notebooks.py")
STORED = notebooks.read()


def texts(notebook: dict[str, Any]) -> list[str]:
    """The plain text of each output that depends on no machine."""
    return [
        "".join(output.get("text") or output["data"]["text/plain"])
        for cell in notebook["cells"]
        if "measured" not in notebooks.tags(cell)
        for output in cell.get("outputs", ())
    ]


@pytest.mark.slow
@pytest.mark.parametrize("without", ["slow", pytest.param(None, marks=pytest.mark.long)])
def test_the_cells_print_what_is_stored(without: str | None) -> None:
    """`python docs/notebooks.py` stores it again. Only `make long` asks for advice and trains in real processes."""
    run = copy.deepcopy(STORED)

    notebooks.execute(run, without=without)

    assert texts(run) == texts(STORED)
    assert len(texts(run)) == 6


def test_each_cell_has_run_in_order_and_stores_no_path() -> None:
    """No folder of the machine that ran it; the file is small."""
    text = notebooks.NOTEBOOK.read_text(encoding="utf-8")
    code = [cell for cell in STORED["cells"] if cell["cell_type"] == "code"]

    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    assert not re.search(r"(?<![\w.])/(home|root|tmp|Users|opt|work|var)\b", text)
    assert len(text) < 300_000


def test_a_page_shows_code_and_the_richest_form_of_each_output() -> None:
    """HTML before a picture before text. Nothing runs."""
    source = ["raise SystemExit"]
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["a\n", "b\n"]},
        {"output_type": "execute_result", "data": {"text/plain": ["<Figure>"], "image/png": "AAAA"}},
        {"output_type": "execute_result", "data": {"text/plain": ["1"], "text/html": ["<b>1</b>"]}},
    ]
    cells = [{"cell_type": "markdown", "source": ["# A\n", "b"]}, {"cell_type": "code", "source": source, "outputs": outputs}]

    page = notebooks.in_markdown({"cells": cells})

    assert page.startswith("# A\nb\n\n~~~~~~~~python\nraise SystemExit\n~~~~~~~~\n\n~~~~~~~~text\na\nb\n~~~~~~~~\n\n")
    assert '<img alt="&lt;Figure&gt;" src="data:image/png;base64,AAAA">' in page
    assert page.endswith('<div class="shown">\n<b>1</b>\n</div>\n~~~~~~~~')
