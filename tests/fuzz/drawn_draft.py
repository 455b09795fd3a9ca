"""A config while it is drawn: the words so far, and which choice each group has."""

from __future__ import annotations

from random import Random

import known_keys


class Draft:
    """The words and files so far. `choices` holds what was chosen, also by a method, so that fields of those choices can be changed."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.words: list[str] = []
        self.files: dict[str, str | bytes] = {}
        self.choices: dict[str, str] = {}
        self._adopt("", "config")

    def choose(self, group: str, choice: str | None = None) -> None:
        """Type a choice of a group, a drawn one unless it is given."""
        choice = choice or self.rng.choice(known_keys.groups()[group])
        self.words.append(f"{group}={choice}")
        self.choices[group] = choice
        if group in ("method", "experiment"):
            self._adopt(group, choice)

    def chosen(self, group: str) -> str | None:
        """The class that the present choice of a group names."""
        return known_keys.targets().get((group, self.choices.get(group, "")))

    def _adopt(self, group: str, choice: str) -> None:
        """The choices that a file makes."""
        file = known_keys.written(group, choice)
        for default in file.get("defaults", []):
            for name, chosen in default.items() if not isinstance(default, str) else ():
                name = str(name).removeprefix("override ").removeprefix("/")
                if name in known_keys.groups() and chosen is not None and name != group:
                    self.choices[name] = str(chosen)
                    if name == "method":
                        self._adopt("method", str(chosen))
