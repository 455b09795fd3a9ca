"""An answer as one self-contained HTML file: the question, the answer, pictures, tables, the command and the versions."""

from __future__ import annotations

import base64
import io
import platform
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from hetsim.answers.answer import Answer, Cell, Sheet
from hetsim.checks import printable
from hetsim.results.writing.figures import own_style
from hetsim.version import __version__

MAX_SVG, MAX_TABLES, MAX_TEXT = 500_000, 400_000, 100_000
"""The maximum letters of an SVG picture (a larger one becomes a PNG), of all tables, and of a text. So a page has less than 3 MB."""
MAX_CELL = 200
"""The maximum letters of a cell."""
COLOURS = {
    "#333333": "currentColor",
    "#000000": "currentColor",
    "#e9ecef": "var(--quiet, #e9ecef)",
    "#ffffff": "var(--paper, #ffffff)",
    "#888888": "var(--grey, #777777)",
    "#555555": "var(--grey, #555555)",
}
"""A figure's colours and their replacements in a page, which may be dark. All other colours are visible on both."""
STYLE = Path(__file__).with_name("page.css")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The browser's permissions: the style and pictures of the page itself, and no script."""
WITH_COMMAND = re.compile(r"(.*?:) ((?:hetsim(?:-\w+)? |from hetsim).*)")
"""A remark that ends with a command or a line of Python, which is shown as code."""
WORDS = ' class="words"'
"""The attribute of a column without numbers."""
NO_FORMULAS = "mathjax_ignore tex2jax_ignore"
"""The classes by which versions 3 and 2 of MathJax, which typesets the output of notebooks, leave text as it is."""
VERSIONS = ("torch", "numpy", "matplotlib")


def document(answer: Answer, writer: str) -> str:
    """The answer as one file of this command."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta name="generator" content="{writer}">\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="color-scheme" content="light dark">\n'
        f"<title>{_text(answer.question)}</title>\n<style>\n{STYLE.read_text(encoding='utf-8')}</style>\n</head>\n<body>\n"
        f"<main>\n{article(answer)}\n</main>\n<footer>{_text(versions())}</footer>\n</body>\n</html>\n"
    )


def article(answer: Answer) -> str:
    """The answer without a file's frame, for a notebook. Jupyter sets no formulas in it, which may come from somebody else."""
    return "\n".join([f'<div class="{NO_FORMULAS}">', *_elements(answer), "</div>"])


def versions() -> str:
    """The versions of hetsim, Python and libraries that made the page."""
    from importlib import metadata  # with email, which no other part of a command needs

    libraries = [f"{name} {distribution.version}" for name in VERSIONS for distribution in [*metadata.distributions(name=name)][:1]]
    system = f"Python {platform.python_version()}, {platform.system()} on {platform.machine()}"
    return f"hetsim {__version__}, {', '.join([*libraries, system])}"


def _elements(answer: Answer) -> Iterator[str]:
    yield f'<h1>{_text(answer.question)}</h1>\n<p class="answer">{_sentences(" ".join(answer.answer))}</p>'
    for number, picture in enumerate(answer.pictures):
        if (figure := picture.draw()) is not None:
            shown = _inline(figure, picture.caption, f"figure {number}")
            yield f"<figure><div>{shown}</div><figcaption>{_text(picture.caption)}</figcaption></figure>"
    room = MAX_TABLES
    for sheet in answer.sheets:
        table = _table(sheet, room)
        room -= len(table)
        yield table
    remarks = [*(line for sheet in answer.sheets for line in (*sheet.above, *sheet.below)), *answer.remarks]
    if remarks:
        yield f'<h2>Remarks</h2><ul class="remarks">{"".join(map(_remark, remarks))}</ul>'
    if answer.command:
        yield f"<h2>Command</h2><pre><code>{_text(answer.command)}</code></pre>"
    for title, text in answer.texts:
        kept = text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}\n… and {len(text) - MAX_TEXT} letters more"
        lines = "\n".join(map(_text, kept.splitlines()))
        yield f"<details><summary>{_text(title)}</summary><pre><code>{lines}</code></pre></details>"


def _table(sheet: Sheet, room: int) -> str:
    """The first rows of a table, as many as fit in the page."""
    kept = []
    words = [any(str(row[place])[:1].isalpha() for row in sheet.rows[:10]) for place in range(len(sheet.heads))]
    for row in sheet.rows:
        cells = "".join(f"<td{WORDS if is_words else ''}>{_cell(cell)}</td>" for cell, is_words in zip(row, words, strict=True))
        room -= len(cells)
        if room < 0:
            break
        kept.append(f"<tr>{cells}</tr>")
    num_omitted = len(sheet.rows) - len(kept)
    more = f"<p>{num_omitted} more rows are left out.</p>" if num_omitted else ""
    title = f"<h2>{_cell(sheet.title)}</h2>" if str(sheet.title) else ""
    heads = "".join(f"<th{WORDS if is_words else ''}>{_cell(head)}</th>" for head, is_words in zip(sheet.heads, words, strict=True))
    return f'{title}<div class="table"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(kept)}</tbody></table></div>{more}'


def _inline(figure: Any, words: str, name: str) -> str:
    """A figure as an inline picture: SVG in the page's colours, or PNG if the SVG would be large. `words` describe it for blind readers.

    Figures of one page need different names, because parts of an SVG refer to each other.
    """
    import matplotlib

    text = io.StringIO()
    with own_style(), matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
        svg = text.getvalue().partition("<svg")[2]
        if len(svg) > MAX_SVG:
            image = io.BytesIO()
            figure.savefig(image, format="png", dpi=110)
            return f'<img alt="{_text(words)}" src="data:image/png;base64,{base64.b64encode(image.getvalue()).decode()}">'
    head, _, rest = svg.partition(">")
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    for colour, instead in COLOURS.items():
        rest = re.sub(rf"(?<=: ){colour}(?=[;\"])", instead, rest)
    rest = re.sub(r" id=\"(?!\w*[0-9a-f]{10}\")\w+\"", "", rest)  # those that nothing refers to
    return f'<svg role="img" aria-label="{_text(words)}"{head}>{rest.strip()}'


def _remark(text: str) -> str:
    match = WITH_COMMAND.fullmatch(text)
    if match is None:
        return f"<li>{_sentences(text)}</li>"
    return f"<li>{_sentences(match[1])}<pre><code>{_text(match[2])}</code></pre></li>"


def _sentences(text: str) -> str:
    """Running text in which no line begins with a percent sign."""
    return _text(text).replace(" %", "&nbsp;%")


def _cell(cell: Cell) -> str:
    words, text = (cell, "") if isinstance(cell, str) else (cell.words, cell.text)
    return _text(_cut(words)) + (f"<code>{_text(_cut(text))}</code>" if text else "")


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CELL else f"{text[:MAX_CELL]}…"


def _text(text: str) -> str:
    """Text, which may come from somebody else, as HTML without any markup."""
    return escape(printable(text))
