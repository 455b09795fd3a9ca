"""The two sides of a comparison: their runs, and the check that each side's runs are repeats of one config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hetsim.files.config_file import flattened, read_config
from hetsim.files.keys import VARY_IN_A_COMPARISON, VARY_IN_A_ROW, is_one_of
from hetsim.files.reading import shown, skipped
from hetsim.files.run_folders import search
from hetsim.files.summary_and_curve import read_points, read_summary
from hetsim.results.comparison.time_use import TimeUse, time_use

NAMES = {"sim": "simulated", "dist": "measured"}
"""The names of the sides if each backend is on one side."""
MOST_KEYS = 4
"""The number of differing keys of a config group up to which their values are shown. A calibrated cluster may differ in thirty keys."""


@dataclass(frozen=True)
class Side:
    """The runs of one side. They differ only in keys in which the runs of a row of `hetsim-table` may differ."""

    name: str
    folders: tuple[Path, ...]
    summaries: tuple[dict[str, Any], ...]
    uses: tuple[TimeUse | None, ...]
    """How each run used its time; None for a run without a trace."""
    config: Mapping[str, Any]
    """The config of the first run."""

    @property
    def num_runs(self) -> int:
        """The number of runs."""
        return len(self.folders)

    @property
    def backend(self) -> Any:
        """The backend of all runs; None if their summaries do not contain it."""
        return self.summaries[0].get("backend")

    @property
    def seeds(self) -> list[Any]:
        """The distinct seeds of the runs, in order. If no summary contains a seed, the seed of the first run's config."""
        seeds = {summary["seed"] for summary in self.summaries if "seed" in summary}
        return sorted(seeds) if seeds else [self.config.get("seed")]

    @property
    def title(self) -> str:
        """The title of the side in pictures."""
        summary = self.summaries[0]
        method, cluster, workload = (summary.get(key) for key in ("method", "cluster", "workload"))
        return f"{method} on {cluster}, {workload}"


@dataclass(frozen=True)
class Sides:
    """Both sides, and remarks on them, one sentence each. A simulated side comes before a measured one."""

    first: Side
    second: Side
    remarks: tuple[str, ...]

    @property
    def both(self) -> tuple[Side, Side]:
        """Both sides, in order."""
        return self.first, self.second

    @property
    def names(self) -> tuple[str, str]:
        """The names of the sides."""
        return self.first.name, self.second.name

    @property
    def repeats(self) -> bool:
        """Whether a side has more than one run."""
        return max(side.num_runs for side in self.both) > 1

    @property
    def different(self) -> dict[str, tuple[Any, Any]]:
        """The dotted keys in which the sides' configs differ, with both values, except keys that may differ in a comparison."""
        differing = differences(self.first.config, self.second.config)
        if any("script" in side.config for side in self.both):  # a Team knows little of the script that it is in
            differing = {key: values for key, values in differing.items() if None not in values and key != "script"}
        if self.repeats:
            differing.pop("seed", None)
            first_seeds, second_seeds = (", ".join(map(str, side.seeds)) for side in self.both)
            if first_seeds != second_seeds:
                differing["seed"] = (first_seeds, second_seeds)
        return differing

    @property
    def sentences(self) -> list[str]:
        """`different` as sentences: one for each key, or one for a config group that differs in more than `MOST_KEYS` keys."""
        groups: dict[str, dict[str, tuple[Any, Any]]] = {}
        for key, values in self.different.items():
            groups.setdefault(key.split(".")[0], {})[key] = values
        sentences = []
        for group, keys in groups.items():
            if len(keys) > MOST_KEYS:
                subkeys = dict.fromkeys(key.split(".")[1] for key in keys)
                sentences.append(f"the runs differ in {len(keys)} keys of {group}: {', '.join(subkeys)}")
            else:
                sentences += [f"the runs differ in {key}: {first} and {second}" for key, (first, second) in keys.items()]
        return sentences


def sides(first: Sequence[Path], second: Sequence[Path]) -> Sides:
    """Both sides. Each one contains the runs in and below its folders. Raises ValueError if a side has several configs.

    Broken runs below a folder are skipped.
    """
    remarks: list[str] = []
    first_side, second_side = (_side(name, folders, remarks) for name, folders in (("first", first), ("second", second)))
    backends = [first_side.backend, second_side.backend]
    if set(map(repr, backends)) == set(map(repr, NAMES)):
        first_side, second_side = (replace(side, name=NAMES[side.backend]) for side in (first_side, second_side))
        if backends[0] == "dist":
            first_side, second_side = second_side, first_side
    return Sides(first_side, second_side, tuple(remarks))


def _side(name: str, places: Sequence[Path], remarks: list[str]) -> Side:
    summaries, configs, kept, uses = list[dict[str, Any]](), list[dict[str, Any]](), list[Path](), list[TimeUse | None]()
    simulated: dict[Any, Path] = {}
    broken: list[str] = []
    for folder, is_given in [(folder, folder == place) for place in places for folder in run_folders(place)]:
        try:
            summary, config, use = _read(folder)
        except ValueError as error:
            if is_given:
                raise
            broken.append(str(error))
            continue
        if configs and (key := _difference(configs[0], config)):
            values = " and ".join(
                f"{shown(_value(side_config, key))} in {place}" for place, side_config in ((kept[0], configs[0]), (folder, config))
            )
            raise ValueError(f"the runs of one side are repeats of one config, and differ in {key} ({values}): leave one out")
        if summaries and (key := next((key for key in ("backend", "num_workers") if summaries[0].get(key) != summary.get(key)), "")):
            raise ValueError(f"the runs of one side are repeats of one config, and {kept[0]} and {folder} differ in {key}: leave one out")
        seed = summary.get("seed") if summary.get("backend") == "sim" and "seed" in summary else folder.resolve()
        if (same := simulated.setdefault(seed, folder)) is not folder:
            remarks.append(f"{folder} and {same} are the same run: one of them is counted")
            continue
        kept.append(folder)
        summaries.append(summary)
        configs.append(config)
        uses.append(use)
    if not kept:
        raise ValueError(broken[0])
    remarks += skipped(broken)
    return Side(name, tuple(kept), tuple(summaries), tuple(uses), configs[0])


def _read(run: Path) -> tuple[dict[str, Any], dict[str, Any], TimeUse | None]:
    """A run's summary, config and use of time. Raises ValueError if one of its files is broken."""
    summary = read_summary(run)
    if (run / "curve.csv").exists():
        read_points(run)
    return summary, read_config(run), time_use(run, summary)


def run_folders(folder: Path) -> list[Path]:
    """The folder itself if it is a run, else the runs below it. Raises ValueError if there are none."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not the folder of a finished run: give one that contains a summary.json")
    if (folder / "summary.json").exists():
        return [folder]
    if not (names := search(folder).names):
        raise ValueError(f"{folder} holds no finished run: give the folder of one, or one with finished runs below it")
    return [folder / name for name in names]


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The first dotted key in which two configs of one side must not differ but do; empty if there is none."""
    return next(iter(differences(one, other, ignored=VARY_IN_A_ROW)), "")


def _value(config: Mapping[str, Any], key: str) -> Any:
    return dict(flattened(config)).get(key)


def differences(
    first: Mapping[str, Any], second: Mapping[str, Any], *, ignored: Sequence[str] = VARY_IN_A_COMPARISON
) -> dict[str, tuple[Any, Any]]:
    """The dotted keys in which two configs differ, with both values, except the keys `ignored`."""
    first_flat, second_flat = dict(flattened(first)), dict(flattened(second))
    keys = sorted(key for key in {*first_flat, *second_flat} if not is_one_of(key, ignored))
    return {key: (first_flat.get(key), second_flat.get(key)) for key in keys if first_flat.get(key) != second_flat.get(key)}
