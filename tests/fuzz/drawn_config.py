"""One config of the fuzzer: the words of a command line and the files that they name, a function of (seed, number) alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import known_keys
from drawn_changes import PLAUSIBLE
from drawn_draft import Draft
from drawn_mistakes import HOSTILE

SWEEP, RUN = "sweep", "run"
"""The folders that a config writes to."""

DIST_SHARE = 0.005
"""Of the configs end with backend=dist; some others choose it too."""


@dataclass(frozen=True)
class Config:
    """What is typed behind `hetsim`, the files in the folder where it is typed, and the names of the changes that made it."""

    number: int
    words: tuple[str, ...]
    files: dict[str, str | bytes] = field(default_factory=dict)
    changes: tuple[str, ...] = ()

    @property
    def is_sweep(self) -> bool:
        """Whether several runs are asked for."""
        return any(word in ("-m", "--multirun") or word.lstrip("+") == "hydra.mode=MULTIRUN" for word in self.words)


def drawn_config(seed: int, number: int) -> Config:
    """Cheap settings, then one to six changes of any kind."""
    rng = Random(f"{seed}/{number}")
    draft = Draft(rng)
    _base(draft)
    changes = [*_some(rng, PLAUSIBLE, rng.choice((0, 0, 1, 1, 1, 2, 2, 3, 4))), *_some(rng, HOSTILE, rng.choice((0, 0, 0, 1, 1, 1, 2)))]
    for name in changes:
        change, _ = (PLAUSIBLE | HOSTILE)[name]
        change(draft)
    if known_keys.fields(draft.chosen("workload") or "builtins.object").get("num_samples") in ("int", "int | None"):
        draft.words.append(f"++workload.num_samples={rng.choice((64, 500, 2048))}")
    if rng.random() < DIST_SHARE:
        draft.words += ["cluster=uniform4", "workload=phantom", "backend=dist"]
        changes.append("dist")
    elif rng.random() < 0.02:
        draft.choose("backend", "sim")
    words = (f"hydra.run.dir={RUN}", f"hydra.sweep.dir={SWEEP}", *draft.words)
    return Config(number, words, draft.files, tuple(changes))


def _some(rng: Random, changes: dict[str, Any], count: int) -> list[str]:
    drawn = rng.choices(list(changes), [weight for _, weight in changes.values()], k=count)
    return sorted(drawn, key=list(changes).index)


def _base(draft: Draft) -> None:
    """A run of a fraction of a second. What follows on the line may change anything but the number of updates."""
    rng = draft.rng
    workload = rng.choices(("quadratic", "phantom", "digits", "tiny_lm"), (12, 8, 2, 1))[0]
    draft.choose("workload", workload)
    draft.words += ["budget.epochs=null", f"budget.updates={rng.randint(1, 5)}", "trace=full"]
    draft.words.append(f"pictures={'true' if rng.random() < 0.01 else 'false'}")
    draft.choose("method")
    if rng.random() < 0.8:
        draft.words.append(f"batch_size={rng.choice((16, 32, 64))}")
    if rng.random() < 0.3:
        draft.words.append(
            f"cluster={rng.choice(('uniform4', 'mixed4', 'mixed8', 'straggler', 'shared', 'gpu_cpu', 'two_gpus', 'two_racks'))}"
        )
