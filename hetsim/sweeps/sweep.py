"""A sweep from Python, as by `hetsim -m`."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from hetsim import checks
from hetsim.config.errors import USERS, sentence
from hetsim.config.guard import provenance
from hetsim.config.guard.folders import check_folder
from hetsim.config.typed import as_typed
from hetsim.config.typed_files import with_files
from hetsim.errors import RunFailed
from hetsim.pool.engines import check_engine
from hetsim.sweeps import job
from hetsim.sweeps.launchers import own_plugins
from hetsim.sweeps.outcomes import Outcome
from hetsim.sweeps.record import Refused, SweepRecord, launch_failure
from hetsim.trust.shipped import configs


class Quiet:
    """Runs one job without printing. The caller gets the messages.

    A launcher may send it to its own process, which composes the config. From then on, Hydra's configs are checked there.
    """

    def __call__(self, config: DictConfig) -> Outcome | None:
        """The same as `job.job`."""
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return job.job(config)

    def __reduce__(self) -> tuple[Callable[[], Quiet], tuple[()]]:
        return _received, ()


def _received() -> Quiet:
    provenance.install()
    return Quiet()


def swept(words: Iterable[str], *, processes: int | None, config_dir: Path | None, engine: str = "local") -> tuple[Path, list[Outcome]]:
    """The folder of a sweep, and its runs' outcomes. Raises ValueError for an invalid sweep, and RunFailed if it ended early."""
    check_engine(engine)
    if processes is not None:
        checks.whole("processes", processes)
    check_folder("the current folder", Path.cwd())
    several = engine == "local" and processes is not None and processes > 1
    launcher = ["hydra/launcher=joblib"] if several else ["hydra/launcher=ray"] if engine == "ray" else []
    if launcher and processes is not None:
        launcher.append(f"hydra.launcher.n_jobs={processes}")
    typed = with_files(["hydra.mode=MULTIRUN", *words, *launcher], config_dir)
    try:
        with (
            provenance.installed(), own_plugins(), contextlib.redirect_stdout(io.StringIO()),
            initialize_config_dir(str(configs()), version_base="1.3"),
        ):  # fmt: skip
            hydra = GlobalHydra.instance().hydra
            assert hydra is not None
            hydra.multirun("config", Quiet(), typed)
        record = SweepRecord.current
        if record is None or record.folder is None:
            raise RunFailed("hydra.callbacks was changed, by which hetsim counts the runs: leave it as it is")
        return Path(record.folder), record.ended()
    except Refused as refused:
        raise ValueError(sentence(refused.error)) from None
    except RunFailed:
        raise
    except USERS as error:
        raise ValueError(sentence(error)) from None
    except Exception as error:
        raise launch_failure(error) from None  # what a job says of its end is in its log
    finally:
        if SweepRecord.current is not None:
            SweepRecord.current.close()


def words_of(varied: Mapping[str, Any]) -> list[str]:
    """The command-line arguments that give each key its value, or each of the values in a list."""
    words = []
    for key, value in varied.items():
        values = [*value] if isinstance(value, list | tuple | range) else [value]
        if not isinstance(key, str) or not values:
            raise ValueError(f"{key} has no values: list some, or leave it out")
        words.append(f"{key}={','.join(map(as_typed, values))}")
    return words
