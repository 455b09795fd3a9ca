"""Pages and docstrings have no sentence over 35 words and no paragraph over 100."""

from __future__ import annotations

import prose


def test_sentences_and_paragraphs_are_short() -> None:
    """`python tests/prose.py` prints those that are not."""
    long = {path.relative_to(prose.ROOT).as_posix(): faults for path in prose.files() if (faults := prose.too_long(path))}

    assert not long


def test_a_long_sentence_is_found() -> None:
    """In one paragraph of two items, code and links aside."""
    text = f"- {'word ' * 35}`a b c`.\n- [{'word ' * 20}](x) {'word ' * 20}.\n\n```\n{'code ' * 50}\n```\n"

    assert [len(paragraph.split()) for paragraph in prose.paragraphs(text)] == [36, 41]
