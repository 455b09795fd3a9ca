"""A process that runs trials for a search, one by one. It exchanges JSON lines, so nothing is unpickled."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from hetsim.config.errors import sentence
from hetsim.errors import RunFailed
from hetsim.pool.json_process import answering
from hetsim.pool.pool import Pool
from hetsim.searches import trial
from hetsim.searches.trial import Place, Pruned, Watch

MODULE = "hetsim.searches.process"


def run_in(pool: Pool, place: Place, words: Sequence[str], watch: Watch) -> float | None:
    """The same as `trial.run`, in a process of this pool."""
    with pool.borrowed() as process:
        process.fresh()
        process.write({"words": list(words), **asdict(place)})
        while "point" in (answer := process.read()):
            process.write(watch(*answer["point"]))
    if "pruned" in answer:
        raise Pruned
    if "refused" in answer:
        raise ValueError(answer["refused"])
    if "failed" in answer:
        raise RunFailed(answer["failed"])
    value = answer["value"]
    return None if value is None else float(value)


def main() -> None:
    """The process's main function. Each input line is a run. Each output line is an evaluation or a result."""
    with answering() as answers:

        def tell(**message: object) -> None:
            print(json.dumps(message), file=answers, flush=True)

        def watch(*point: float | None) -> bool:
            tell(point=point)
            return bool(json.loads(sys.stdin.readline()))

        for line in sys.stdin:
            task = json.loads(line)
            words = task.pop("words")
            try:
                tell(value=trial.run(words, Place(**task), watch))
            except Pruned:
                tell(pruned=True)
            except ValueError as error:
                tell(refused=str(error))
            except Exception as error:
                tell(failed=f"{type(error).__name__}: {sentence(error)}" if not isinstance(error, RunFailed) else str(error))


if __name__ == "__main__":
    main()
