"""Advice in the process of a test, which has imported what it takes."""

from __future__ import annotations

import json
from typing import Any

from hetsim.advice.advice import AdviceFindings
from hetsim.advice.answer import answer
from hetsim.advice.progress import Progress
from hetsim.advice.question import key_of
from hetsim.advice.simulations import Simulations, StoredAnswers, answering
from hetsim.answers.text import terminal


def text(advice: AdviceFindings) -> str:
    """What `hetsim-advise` prints."""
    return terminal(answer(advice))


def last_of_each(*words: str) -> list[str]:
    """The words of a question, which may give each key once: the last one counts."""
    return [word for place, word in enumerate(words) if "=" not in word or key_of(word) not in map(key_of, words[place + 1 :])]


class Here(Simulations):
    """Answers its questions itself, by way of JSON. After `stop_after` answers it asks the advice to end.

    With a `memo` it simulates what is not in it.
    """

    def __init__(self, *, stop_after: int | None = None, answers: StoredAnswers | None = None, memo: dict[str, Any] | None = None) -> None:
        super().__init__(0, None, progress=Progress(shown=False), answers=answers)
        self.num_answers = 0
        self._stop_after = stop_after
        self._memo = {} if memo is None else memo

    def _simulate(self, question: dict[str, Any]) -> dict[str, Any]:
        asked = json.dumps(question)
        if asked not in self._memo:
            self._memo[asked] = json.dumps(answering(None)(json.loads(asked), None))
        found: dict[str, Any] = json.loads(self._memo[asked])
        self.num_answers += 1
        if self.num_answers == self._stop_after:
            self.progress.stop("after a while")
        return found
