"""A value is a value, however it is written: what was typed once is accepted back by every command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from worlds import exit_status

import hetsim
from hetsim.advice.question import asked
from hetsim.cli.main import main
from hetsim.cli.table import main as table
from hetsim.cluster.quantities import OPAQUE
from hetsim.config.build import build_experiment
from hetsim.config.compose import composed, entries_as_typed
from hetsim.config.resolved import resolved
from hetsim.files.identity import identity_of
from hetsim.results.tables.typed_values import pairs, same
from hetsim.sweeps.space import same_words

pytestmark = pytest.mark.slow

KEYS = {"workload": "phantom", "budget.epochs": None, "budget.updates": 2, "pictures": False, "method": "ssgd"}
QUICK = ("workload=phantom", "budget.epochs=null", "budget.updates=2", "pictures=false", "method=ssgd")
CONFIGS = Path(__file__).parents[1] / "conf"
SPELLINGS = {
    **{
        f"{key}=1": (f"{key}=1.0", f"{key}=1e0")
        for key in ("learning_rate", "momentum", "+optimizer.weight_decay", "evaluate_every_epochs")
    },
    "learning_rate=0": ("learning_rate=0.0", "learning_rate=-0.0"),
    "seed=3": ("seed=3.0",),
    "budget.seconds=60": ("budget.seconds=60.0", "budget.seconds=1 min"),
    "learning_rate=1e-3": ("learning_rate=0.001", "learning_rate=.001", "learning_rate=1.0e-3", "+learning_rate=1e-3"),
    "cluster.network.bytes_per_second=1e6": (
        *(f"cluster.network.bytes_per_second={text}" for text in ("1000000.0", "8 Mbit/s", "1MB/s", "'1 MB/s'", "8\\ Mbit/s")),
    ),
    "budget.updates=1e1": ("budget.updates=10", "budget.updates=10.0"),
    "batch_size=1e3": ("batch_size=1000", "batch_size=1 k"),
    "stop_when_diverged=true": ("stop_when_diverged=True", "stop_when_diverged=TRUE"),
    "cluster.network.latency_seconds=1 ms": ("cluster.network.latency_seconds=1e-3", "cluster.network.latency_seconds=1000 us"),
    "budget.seconds=null": ("budget.seconds=NULL",),
    "cluster.nodes=[{count: 2, seconds_per_sample: 1 ms, overhead_seconds: 0}]": (
        "cluster.nodes=[{count: 2.0, seconds_per_sample: 0.001, overhead_seconds: 0.0}]",
        "cluster.nodes=[{count:2,seconds_per_sample:1 ms,overhead_seconds:0}]",
    ),
    "+cluster.faults={schedule: [{nodes: [1], join: 60, leave: 120}]}": (
        "+cluster.faults={schedule:[{nodes:[1],join:1 min,leave:2 min}]}",
    ),
}
"""A word, and others that mean it."""
EACH = [(word, other) for word, others in SPELLINGS.items() for other in others]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("word", "other"), [pair for pair in EACH if pair != ("learning_rate=1e-3", "+learning_rate=1e-3")])
def test_a_run_has_one_identity_however_a_value_is_written(word: str, other: str) -> None:
    """So the sweep that holds it, and the run that is resumed, know it again."""
    one, two = (composed([*QUICK, each], folder=".").identity for each in (word, other))

    assert one == two


def _with_points(entry: Any) -> Any:
    """Each whole number with a decimal point, but those that classes of torch or a user's function get."""
    if isinstance(entry, dict):
        return {key: value if key in OPAQUE else _with_points(value) for key, value in entry.items()}
    if isinstance(entry, list):
        return [_with_points(value) for value in entry]
    return float(entry) if isinstance(entry, int) and not isinstance(entry, bool) else entry


@pytest.mark.sampled(6)
@pytest.mark.parametrize("method", sorted(path.stem for path in (CONFIGS / "method").glob("*.yaml")))
def test_a_whole_number_may_have_a_decimal_point(method: str) -> None:
    """In each key of each method's config."""
    plain = entries_as_typed(["workload=quadratic", f"method={method}"])

    one, two = (build_experiment(resolved(each))[0] for each in (plain, _with_points(plain)))

    assert repr(two) == repr(one)


@pytest.mark.parametrize("word", ["seed=1.5", "threads=1e30", "seed=nan"])
def test_another_number_is_no_whole_one(word: str) -> None:
    with pytest.raises(ValueError, match="must be a whole number, not"):
        build_experiment(composed([*QUICK, word], folder=".").entries)


def test_an_option_takes_a_time_with_its_unit(sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Or is refused in one sentence, as each word that cannot be read is, without argparse's usage."""
    for text in ("0.001", "1 ms", "1ms"):
        assert exit_status(monkeypatch, "hetsim-table", table, sweep, "--at-seconds", text) == 0
    capsys.readouterr()
    for words in (["--at-seconds", "1 parsec"], ["--nonsense"], ["--target-loss", "1 ms"]):
        assert exit_status(monkeypatch, "hetsim-table", table, sweep, *words) == 2
        told = capsys.readouterr().err
        assert told.startswith("hetsim-table: error: ")
        assert told.count("\n") == 1


def test_what_a_users_own_function_gets_counts_as_it_is_typed() -> None:
    """It may tell 1 from 1.0."""
    one, two = ({"workload": {"options": {"width": width, "lr": [width]}}} for width in (1, 1.0))

    assert identity_of(one) != identity_of(two)


@pytest.mark.parametrize(("word", "other"), EACH)
def test_a_row_is_found_by_either_spelling(word: str, other: str) -> None:
    """As `--baseline` compares a word with what the config of a row has, or with what was typed for it."""
    (key, value), (also, text) = (next(iter((pairs(each) or {}).items())) for each in (word, other))

    assert key == also
    assert same(key, value, text)
    assert not same(key, value, f"{text[:1]}7")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs, typed as users type them."""
    folder = tmp_path_factory.mktemp("sweep")
    hetsim.sweep({**KEYS, "learning_rate": [1e-3, 0.01], "cluster.network.bytes_per_second": ["8 Mbit/s", "80 Mbit/s"]}, folder=folder)
    return folder


BASELINES = ("learning_rate=1e-3", "+learning_rate=.001", "learning_rate=1e-3,cluster.network.bytes_per_second=1e6",
             "learning_rate=0.001 cluster.network.bytes_per_second=8 Mbit/s", "cluster.network.bytes_per_second='1 MB/s'")  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("baseline", BASELINES)
def test_tables_take_the_words_of_the_sweep(
    baseline: str, sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command and Python's function."""
    assert exit_status(monkeypatch, "hetsim-table", table, sweep, "--baseline", baseline, "--to", tmp_path) == 0
    assert "gain over" in capsys.readouterr().out
    assert hetsim.table(sweep, baseline=baseline)


def test_a_row_is_labelled_without_backslashes(sweep: Path) -> None:
    """Hydra puts them into the words of a sweep's runs."""
    shown = repr(hetsim.table(sweep))

    assert "8 Mbit/s" in shown
    assert "\\" not in shown


def test_a_sweep_knows_whole_numbers_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With a decimal point or without one."""
    for words in (("learning_rate=1", "seed=0,1"), ("learning_rate=1.0", "seed=0,1.0")):
        assert exit_status(monkeypatch, "hetsim", main, "-m", *QUICK, *words, f"hydra.sweep.dir={tmp_path}") == 0

    assert "2 runs (2 were there already)" in capsys.readouterr().out


def test_a_sweep_knows_its_runs_again(sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In other words that mean the same."""
    again = ("learning_rate=0.001,1e-2", "cluster.network.bytes_per_second=1e6,10 MB/s")

    assert exit_status(monkeypatch, "hetsim", main, "-m", *QUICK, *again, f"hydra.sweep.dir={sweep}") == 0
    assert "4 runs (4 were there already)" in capsys.readouterr().out


def test_a_key_whose_values_have_tables_of_their_own_has_no_best(
    sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would select nothing."""
    assert exit_status(monkeypatch, "hetsim-table", table, sweep, "--best-of", "cluster.network.bytes_per_second") == 1
    assert "each of its values has a table of its own, so none is the best: leave it out" in capsys.readouterr().err


def test_a_search_resumes_by_words_that_mean_the_same() -> None:
    """In any order of keys, with units; and by no others, nor by what is not a list of words."""
    assert same_words(["budget.seconds=1 min"], ["budget.seconds=60.0"])
    assert not same_words(["momentum=0.1", "momentum=0.2"], ["momentum=0.2", "momentum=0.1"])
    held = ["learning_rate=interval(0.1,1)", "batch_size=64"]

    assert same_words(held, ["batch_size=64.0", "learning_rate=interval(1e-1,1)"])
    assert not same_words(held, ["batch_size=65", "learning_rate=interval(0.1,1)"])
    assert not any(same_words(other, held) for other in (None, [1], "batch_size=64", ["batch_size=[64"], held[:1]))


MINE = "name: mine\nnodes: [{count: 2, seconds_per_sample: 1e-3, overhead_seconds: 0}]\n"
MINE += "network: {bytes_per_second: 1e9}\nserver: {seconds_per_update: 0}\n"


@pytest.fixture
def my(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A current folder with two folders of configs."""
    monkeypatch.chdir(tmp_path)
    for folder, name in (("my", "mine"), ("other", "mine"), ("my", "mixed8")):
        Path(folder, "cluster").mkdir(parents=True, exist_ok=True)
        Path(folder, "cluster", f"{name}.yaml").write_text(MINE)


FILE = "cluster=my/cluster/mine.yaml"
TAKE_FILES: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "hetsim": lambda patch: exit_status(patch, "hetsim", main, *QUICK, FILE, "hydra.run.dir=run") == 0,
    "hetsim -m": lambda patch: exit_status(patch, "hetsim", main, "-m", *QUICK, f"{FILE},mixed4", "hydra.sweep.dir=sweep") == 0,
    "hetsim.run": lambda _: hetsim.run(*QUICK, FILE, folder="run").summary["cluster"] == "mine",
    "hetsim.sweep": lambda _: hetsim.sweep({**KEYS, "cluster": FILE[8:]}, folder="sweep"),
    "hetsim-advise": lambda _: asked([FILE, "timing"], None).experiment.cluster.name == "mine",
    "hetsim-search and hetsim-calibrate": lambda _: composed([*QUICK, FILE], folder=".").entries["cluster"]["name"] == "mine",
}


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("my")
@pytest.mark.parametrize("command", TAKE_FILES)
def test_a_file_of_a_choice_is_taken_for_the_choice(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the folder of its group were in --config-dir."""
    assert TAKE_FILES[command](monkeypatch)


@pytest.mark.usefixtures("my")
@pytest.mark.parametrize(
    ("words", "config_dir", "said"),
    [
        (["cluster=my/cluster/none.yaml"], None, "cluster=my/cluster/none.yaml: there is no such file"),
        (["cluster=my/cluster/mixed8.yaml"], None, "cluster=mixed8 ships with hetsim and would be taken instead: rename the file"),
        (["cluster=mixed8"], "my", "mixed8.yaml has the name of a choice that ships with hetsim, which would be taken: rename the file"),
        ([FILE], "other", "cluster=mine is a file in each of other, my: rename all but one of them"),
        ([f"{FILE},other/cluster/mine.yaml"], None, "my/cluster has a mine.yaml, too: rename one of them"),
    ],
)
def test_a_file_that_would_not_be_taken_is_refused(words: list[str], config_dir: str | None, said: str) -> None:
    """Hydra takes the first file of a name that it finds, without a word."""
    with pytest.raises(ValueError, match=r".") as caught:
        composed([*QUICK, *words], config_dir=None if config_dir is None else Path(config_dir))

    assert said in str(caught.value)
