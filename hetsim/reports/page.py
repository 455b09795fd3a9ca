"""A report as one self-contained HTML file: the question, the answer, pictures, tables, the command and the versions."""

from __future__ import annotations

import base64
import io
import platform
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from hetsim.checks import printable
from hetsim.files.writing import write_text
from hetsim.reports.place import check_place
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
VERSIONS = ("torch", "numpy", "matplotlib")


class Sheet(NamedTuple):
    """A table."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Page:
    """The content of a report. All texts are plain, and are escaped when they are written."""

    question: str
    answer: str
    figures: Sequence[tuple[str, Any]] = ()
    """Each figure with its caption; None for a figure without content."""
    sheets: Sequence[Sheet] = ()
    remarks: Sequence[str] = ()
    command: str = ""
    texts: Sequence[tuple[str, str]] = ()
    """Longer texts with their titles, folded."""


def check_file(file: Path) -> None:
    """Raise ValueError if no page can be written to this file."""
    check_place(file, "--html", ".html")


def write(page: Page, file: Path) -> None:
    """Write a page to its file, completely or not at all."""
    write_text(file, document(page))


def document(page: Page) -> str:
    """The page as one file."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="color-scheme" content="light dark">\n'
        f"<title>{_text(page.question)}</title>\n<style>\n{STYLE.read_text(encoding='utf-8')}</style>\n</head>\n<body>\n"
        f"<main>\n{article(page)}\n</main>\n<footer>{_text(versions())}</footer>\n</body>\n</html>\n"
    )


def article(page: Page) -> str:
    """The page without a file's frame, for a notebook."""
    return "\n".join(_parts(page))


def versions() -> str:
    """The versions of hetsim, Python and libraries that made the page."""
    from importlib import metadata  # with email, which no other part of a command needs

    found = [f"{name} {each.version}" for name in VERSIONS for each in [*metadata.distributions(name=name)][:1]]
    system = f"Python {platform.python_version()}, {platform.system()} on {platform.machine()}"
    return f"hetsim {__version__}, {', '.join([*found, system])}"


def _parts(page: Page) -> Iterator[str]:
    yield f'<h1>{_text(page.question)}</h1>\n<p class="answer">{_sentences(page.answer)}</p>'
    for number, (caption, figure) in enumerate(page.figures):
        if figure is not None:
            yield f"<figure><div>{picture(figure, caption, f'figure {number}')}</div><figcaption>{_text(caption)}</figcaption></figure>"
    room = MAX_TABLES
    for sheet in page.sheets:
        table = _table(sheet, room)
        room -= len(table)
        yield table
    if page.remarks:
        yield f'<h2>Remarks</h2><ul class="remarks">{"".join(map(_remark, page.remarks))}</ul>'
    if page.command:
        yield f"<h2>Command</h2><pre><code>{_text(page.command)}</code></pre>"
    for title, text in page.texts:
        kept = text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}\n… and {len(text) - MAX_TEXT} letters more"
        lines = "\n".join(map(_text, kept.splitlines()))
        yield f"<details><summary>{_text(title)}</summary><pre><code>{lines}</code></pre></details>"


def _table(sheet: Sheet, room: int) -> str:
    """The first rows of a table, as many as fit in the page."""
    kept = []
    words = [any(row[place][:1].isalpha() for row in sheet.rows[:10]) for place in range(len(sheet.heads))]
    for row in sheet.rows:
        cells = "".join(f"<td{WORDS if is_words else ''}>{_cell(cell)}</td>" for cell, is_words in zip(row, words, strict=True))
        room -= len(cells)
        if room < 0:
            break
        kept.append(f"<tr>{cells}</tr>")
    left = len(sheet.rows) - len(kept)
    more = f"<p>{left} more rows are left out.</p>" if left else ""
    title = f"<h2>{_text(sheet.title)}</h2>" if sheet.title else ""
    heads = "".join(f"<th{WORDS if is_words else ''}>{_cell(head)}</th>" for head, is_words in zip(sheet.heads, words, strict=True))
    return f'{title}<div class="table"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(kept)}</tbody></table></div>{more}'


def picture(figure: Any, words: str, name: str) -> str:
    """A figure as an inline picture: SVG in the page's colours, or PNG if the SVG would be large. `words` describe it for blind readers.

    Figures of one page need different names, because parts of an SVG refer to each other.
    """
    import matplotlib

    told = io.StringIO()
    with own_style(), matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(told, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
        svg = told.getvalue().partition("<svg")[2]
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
    found = WITH_COMMAND.fullmatch(text)
    if found is None:
        return f"<li>{_sentences(text)}</li>"
    return f"<li>{_sentences(found[1])}<pre><code>{_text(found[2])}</code></pre></li>"


def _sentences(text: str) -> str:
    """Running text in which no line begins with a percent sign."""
    return _text(text).replace(" %", "&nbsp;%")


def _cell(text: str) -> str:
    return _text(text if len(text) <= MAX_CELL else f"{text[:MAX_CELL]}…")


def _text(text: str) -> str:
    """Text, which may come from somebody else, as HTML without any markup."""
    return escape(printable(text))
