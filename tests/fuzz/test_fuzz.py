"""Whatever is typed, a run succeeds or is refused in a sentence: no traceback, no hang, no file and no process left."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import known_keys
import pytest
from drawn_changes import PLAUSIBLE
from drawn_config import Config, drawn_config
from drawn_mistakes import HOSTILE
from fuzzing import Server, run_all
from laws import Ran, findings
from report import Figures

SEED = 0
SHORT, LONG = 5, 10_000


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One for all tests: it takes seconds to begin."""
    with Server() as server:
        yield server


def figures(ran: Iterable[Ran]) -> Figures:
    """The figures of these runs."""
    found = Figures(SEED)
    for each in ran:
        found.add(each)
    return found


@pytest.mark.slow
def test_a_few_configs_break_no_law(server: Server) -> None:
    """The same ones every time."""
    found = figures(server.run(drawn_config(SEED, number)) for number in range(SHORT))

    assert not found.found, found.text()


@pytest.mark.long
def test_ten_thousand_configs_break_no_law() -> None:
    """The few are among them."""
    found = figures(run_all(SEED, range(LONG), processes=2))

    print(found.text())
    assert not found.found, found.text()


def test_a_config_is_a_function_of_its_seed_and_number() -> None:
    """So a finding is repeated by its number."""
    assert [drawn_config(3, number) for number in range(50)] == [drawn_config(3, number) for number in range(50)]
    assert drawn_config(3, 1) != drawn_config(4, 1)


@pytest.mark.long
def test_whatever_the_schema_has_is_among_the_ten_thousand() -> None:
    """Each choice of each group, each key of conf/, each argument of each shipped class, each key of a cluster, and each change."""
    configs = [drawn_config(SEED, number) for number in range(LONG)]

    words = {word.lstrip("+~").split("=")[0] for config in configs for word in config.words}
    choices = {word for config in configs for word in config.words}
    clusters = {name for config in configs for word in config.words if "cluster." in word for name in re.findall(r"(\w+):", word)}
    arguments = {f"{group}.{name}" for (group, _), target in known_keys.targets().items() for name in known_keys.fields(target)}
    assert {f"{group}={choice}" for group, named in known_keys.groups().items() for choice in named} <= choices
    assert arguments <= words
    assert {*known_keys.leaves()} <= words
    assert {name for place, names in known_keys.cluster_keys().items() if place for name in names} <= clusters
    assert {f"cluster.{name}" for name in known_keys.cluster_keys()[""]} <= words
    assert {change for config in configs for change in config.changes} >= {*PLAUSIBLE, *HOSTILE}


def test_the_keys_of_a_cluster_are_those_that_its_page_describes() -> None:
    """docs/reference/cluster.md has a table for each part, whose first column names them."""
    text = known_keys.CLUSTER_PAGE.read_text(encoding="utf-8")

    tables = {name for row in re.findall(r"^\|([^|]*`[^|]*)\|", text, flags=re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    inline = {"nodes", "factor", "seconds_between", "seconds_lasting"}  # in the last column
    assert {name for place, names in known_keys.cluster_keys().items() if place for name in names} <= tables | inline


def ran(
    tmp_path: Path, *, status: int | None = 1, stdout: str = "", stderr: str = "", files: tuple[str, ...] = (), sweep: bool = False
) -> Ran:
    """How a run ended that left these files."""
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{"seconds": NaN}')
    there = {str(path.relative_to(tmp_path)): path for path in sorted(tmp_path.rglob("*"))}
    return Ran(Config(0, ("-m",) if sweep else ()), status, 0.1, stdout, stderr, "", there)


SENTENCE = "hetsim: error: seed must be at least 0, not -1\n"


@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        ({"status": None}, "hang"),
        ({"status": -9}, "crash"),
        ({"status": 2, "stderr": "usage: hetsim\n"}, "status"),
        ({"stderr": ""}, "no sentence"),
        ({"stderr": "Traceback (most recent call last):\nKeyError: 'a'\n"}, "traceback"),
        ({"stderr": SENTENCE + "and one line more\n"}, "stray line"),
        ({"stderr": SENTENCE * 2}, "several sentences"),
        ({"stderr": SENTENCE + "file.py:3: UserWarning: so\n"}, "stray line"),
        ({"stderr": SENTENCE, "status": 0}, "sentence of a run that succeeded"),
        ({"stderr": "hetsim: error: TypeError in <lambda>\n"}, "Python's own words"),
        ({"stderr": SENTENCE, "files": ("run/config.yaml",)}, "refused and left"),
        ({"stderr": SENTENCE, "files": ("sweep/a/trace.parquet",), "sweep": True}, "refused and left"),
        ({"stderr": SENTENCE, "files": ("code-ran",)}, "code ran"),
        ({"stderr": SENTENCE, "files": ("elsewhere",)}, "file elsewhere"),
        ({"status": 0, "files": ("run/.trace.parquet.unfinished", "run/summary.json")}, "unfinished file"),
        ({"status": 0, "files": ("run/summary.json",)}, "summary"),
        ({"status": 0}, "no summary"),
    ],
)
def test_each_law_can_be_broken(broken: dict[str, object], kind: str, tmp_path: Path) -> None:
    """A run that breaks it is a finding of its kind."""
    assert kind in {finding.kind for finding in findings(ran(tmp_path, **broken))}  # type: ignore[arg-type]


def test_a_refusal_and_a_sweep_with_an_error_file_break_no_law(tmp_path: Path) -> None:
    """error.txt is what a refused run of a sweep leaves."""
    assert not findings(ran(tmp_path / "run", stderr=SENTENCE))
    assert not findings(ran(tmp_path / "sweep", stderr=SENTENCE, files=("sweep/a/error.txt",), sweep=True))


@pytest.mark.slow
def test_a_run_begins_in_the_state_in_which_the_others_began(server: Server) -> None:
    """What a run does to its process does not reach the next, whether it was refused or not."""
    quiet = Config(0, ("workload=phantom", "budget.epochs=null", "budget.updates=1", "pictures=false", "hydra.run.dir=run"))

    first = server.run(quiet)
    refused = server.run(replace(quiet, words=(*quiet.words, "nothing=1")))
    second = server.run(quiet)

    assert (first.status, first.stdout, first.found) == (second.status, second.stdout, second.found) == (0, first.stdout, [])
    assert (refused.status, refused.found) == (1, [])
