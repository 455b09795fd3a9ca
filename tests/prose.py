"""Long sentences and paragraphs, in pages and docstrings: `python tests/prose.py [FILE …]` prints them, all of the project's by default.

Code, tables, headings, links' addresses and equations are left out. A sentence ends at a full stop, a question or
exclamation mark, or at the end of its item or paragraph.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_WORDS_OF_A_SENTENCE = 35
MAX_WORDS_OF_A_PARAGRAPH = 100
PYTHON = ("hetsim", "benchmarks", "studies")
ITEM = re.compile(r"\s*(?:[-*>]|\d+\.)\s")


def files() -> list[Path]:
    """All pages and all modules of the project."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb"), *(ROOT / "studies").rglob("*.md")]
    return sorted([*pages, *(path for folder in PYTHON for path in (ROOT / folder).rglob("*.py"))])


def too_long(path: Path) -> list[str]:
    """Each sentence and each paragraph of a file that has too many words, with their number."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "\n\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")
    found = []
    for paragraph in docstrings(text) if path.suffix == ".py" else paragraphs(text):
        count = len(paragraph.split())
        if count > MAX_WORDS_OF_A_PARAGRAPH:
            found.append(f"a paragraph of {count} words: {paragraph[:80]} …")
        for sentence in re.split(r"(?<=[.?!])(?:\*\*|\)|\")?\s+", paragraph):
            count = len(sentence.split())
            if count > MAX_WORDS_OF_A_SENTENCE:
                found.append(f"a sentence of {count} words: {sentence[:80]} …")
    return found


def paragraphs(text: str) -> Iterator[str]:
    """The paragraphs and items of a text in Markdown, each in one line."""
    text = re.sub(r"^ *(```|~~~).*?^ *\1`*$", "\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->|\$\$.*?\$\$", "\n", text, flags=re.DOTALL)
    text = re.sub(r"`[^`\n]+`|\$[^$\n]+\$", "x", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        alone = not line.strip() or line.lstrip().startswith(("|", "#")) or set(line.strip()) <= set("-= ")
        if (alone or ITEM.match(line)) and lines:
            yield " ".join(lines)
            lines = []
        if not alone:
            lines.append(re.sub(rf"^{ITEM.pattern}", "", line).strip())


def docstrings(text: str) -> Iterator[str]:
    """The paragraphs of a module's docstrings: lines that are indented in one are code."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines = inspect.cleandoc(node.value.value).splitlines()
            yield from paragraphs("\n".join("" if line.startswith("    ") else line for line in lines))


if __name__ == "__main__":
    for path in [Path(word).resolve() for word in sys.argv[1:]] or files():
        for fault in too_long(path):
            print(f"{path.relative_to(ROOT)}: {fault}")
