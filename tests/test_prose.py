"""Pages and docstrings have no sentence over 35 words and no paragraph over 100, but for the files that are still to be rewritten."""

from __future__ import annotations

import prose

STILL_LONG = 11
"""At most so many files have such sentences. Lower it with each file that is rewritten: `python tests/prose.py` prints the sentences."""


def test_sentences_and_paragraphs_are_short() -> None:
    long = {path.relative_to(prose.ROOT).as_posix() for path in prose.files() if prose.too_long(path)}

    assert len(long) <= STILL_LONG, sorted(long)
    assert not any(name.startswith(("README", "docs/start/install", "docs/start/python", "docs/internals/design")) for name in long)


def test_a_long_sentence_is_found() -> None:
    """In one paragraph of two items, code and links aside."""
    text = f"- {'word ' * 35}`a b c`.\n- [{'word ' * 20}](x) {'word ' * 20}.\n\n```\n{'code ' * 50}\n```\n"

    assert [len(paragraph.split()) for paragraph in prose.paragraphs(text)] == [36, 41]
