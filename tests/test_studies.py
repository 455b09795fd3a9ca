"""Every study has what a reader looks for, says what its files say, and its code still runs; `make studies-quick` runs more of each."""

from __future__ import annotations

import csv
import importlib
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.trust.shipped import configs

pytestmark = pytest.mark.slow

STUDIES = Path(__file__).parents[1] / "studies"
FOLDERS = sorted(STUDIES.glob("[0-9]*"))
every_study = pytest.mark.parametrize("study", FOLDERS, ids=lambda study: study.name)
Load = Callable[[Path, str], Any]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """A module of a study, which may import its neighbours and what studies share; studies have modules of the same names."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(STUDIES)

    def loaded(study: Path, name: str) -> Any:
        monkeypatch.syspath_prepend(study)
        return importlib.import_module(name)

    yield loaded
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "").is_relative_to(STUDIES):
            del sys.modules[name]


def rows(path: Path) -> list[dict[str, str]]:
    """Those of a CSV file, without its comments."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def test_the_index_and_the_log_name_every_study() -> None:
    """By links, and by its number under a date."""
    index, log = ((STUDIES / name).read_text(encoding="utf-8") for name in ("README.md", "LOG.md"))

    assert FOLDERS
    for study in FOLDERS:
        assert f"]({study.name}/README.md)" in index
        assert f"`{study.name[:2]}`" in log
    assert re.findall(r"^## .*", log, flags=re.MULTILINE) == re.findall(r"^## \d{4}-\d\d-\d\d$", log, flags=re.MULTILINE)


@every_study
def test_a_study_has_all_parts(study: Path) -> None:
    """Question and answer first, then the method, a figure, a table, and what is not predicted well; every run in results.csv."""
    text = (study / "README.md").read_text(encoding="utf-8")
    script = (study / "run.sh").read_text(encoding="utf-8")
    first = text.split("\n\n")[1]

    assert first.startswith("**Question.** ")
    assert re.search(r"\*\*Answer\.\*\* .*\d", first, flags=re.DOTALL)
    headings = set(re.findall(r"^## (.*)", text, flags=re.MULTILINE))
    assert "Method" in headings
    assert headings & {"What is not predicted well, and why", "What this does not show"}
    assert "\n|---|" in text
    for picture in re.findall(r"!\[.+\]\((.*\.png)\)", text):
        assert 10_000 < (study / picture).stat().st_size < 200_000
    assert "![" in text
    assert (study / "plot.py").exists()
    assert len(rows(study / "results.csv")) >= 10
    assert os.access(study / "run.sh", os.X_OK)
    assert re.search(r"^# .*(minutes|hours)", script, flags=re.MULTILINE)
    assert "--quick" in script


@every_study
def test_a_studys_tables_are_those_of_its_runs(study: Path) -> None:
    """tables.md was computed, and the README shows all of it."""
    text = (study / "README.md").read_text(encoding="utf-8")

    for table in (study / "tables.md").read_text(encoding="utf-8").strip().split("\n\n"):
        assert table in text


@every_study
@pytest.mark.sampled(1)
def test_a_studys_figure_can_be_drawn_again(study: Path, load: Load, tmp_path: Path) -> None:
    """From the files in its folder."""
    for path in study.glob("*.csv"):
        shutil.copy(path, tmp_path)

    load(study, "plot").main(["--folder", str(tmp_path)])

    assert list(tmp_path.glob("*.png"))


@every_study
def test_a_study_has_a_smoke_test(study: Path) -> None:
    """Of at most five seconds, in this file."""
    assert f"test_study_{study.name[:2]}_" in Path(__file__).read_text(encoding="utf-8")


PUBLISHED = STUDIES / "07-published-measurements"


def test_study_07_calibrates_and_predicts(load: Load) -> None:
    """A short simulation has the measured rates at both ends, to the noise of so few steps."""
    predict = load(PUBLISHED, "predict")
    ends = next(series.ends for series in predict.measured() if (series.ends.gpu, series.ends.model) == ("P100", "resnet32"))

    loop = predict.calibrated(ends, predict.OWN.variations(ends), num_updates=500)

    assert loop.throughput(1, num_updates=500) == pytest.approx(ends.rates[0], rel=0.02)
    assert loop.throughput(8, num_updates=500) == pytest.approx(ends.rates[1], rel=0.002)
    assert loop.throughput(8, num_updates=500, servers=predict.HALVES) == pytest.approx(2 * ends.rates[1], rel=0.05)


def test_study_07_sees_only_the_ends_of_what_it_predicts(load: Load) -> None:
    """With other measurements in between, the prediction of that series is the same, and some other series' is not."""
    evaluate = load(PUBLISHED, "evaluate")
    series, simulated = evaluate.measured(), evaluate.Simulated(PUBLISHED)
    rules = [evaluate.Rule("min", evaluate.least), *simulated.rules([evaluate.OWN, *evaluate.SHARED])]
    before = evaluate.leave_one_out(series, rules)

    for at, one in enumerate(series):
        absurd = replace(one, rates=(one.rates[0], *(0.1 * rate for rate in one.rates[1:-1]), one.rates[-1]))
        after = evaluate.leave_one_out([*series[:at], absurd, *series[at + 1 :]], rules)
        same = {ends for ends in before if after[ends].rule == before[ends].rule and after[ends].factor == before[ends].factor}
        assert one.ends in same
        assert len(same) < len(series)


def test_study_07_reports_what_its_runs_say(load: Load, tmp_path: Path) -> None:
    """Tables and predictions follow from results.csv; the predictions for a second server are as they were committed."""
    evaluate = load(PUBLISHED, "evaluate")
    for name in ("results.csv", "second_server.csv"):
        shutil.copy(PUBLISHED / name, tmp_path)

    evaluate.main(["--folder", str(tmp_path)])

    for name in ("predictions.csv", "tables.md", "second_server.csv", "second_server_compared.csv", "more_servers.csv"):
        assert (tmp_path / name).read_text(encoding="utf-8") == (PUBLISHED / name).read_text(encoding="utf-8")
    assert len(rows(PUBLISHED / "predictions.csv")) == 48
    assert len(rows(PUBLISHED / "second_server_compared.csv")) == 32
    assert len(rows(PUBLISHED / "more_servers.csv")) == 96


def test_study_07_knows_the_variables_of_its_models(load: Load) -> None:
    """Trained variables have the published number of parameters; with biases, nearly all bytes fall to one of two servers."""
    variables = load(PUBLISHED, "variables")
    published = {row["model"]: int(row["num_parameters"]) for row in rows(PUBLISHED / "async_ps_throughput.csv")}
    by_bytes = variables.Cost(seconds_per_variable=0, seconds_per_byte=1)

    trained = {model: sum(one.size for one in found if one.trained) for model, found in variables.MODELS.items()}

    assert trained == published
    assert by_bytes.largest_share("resnet32", 2) == pytest.approx(0.517, abs=0.001)
    assert by_bytes.largest_share("shakeshake_big", 2) > 0.99
    assert variables.Cost(1, 0).largest_share("shakeshake_big", 2) == 0.5


def test_study_07_fits_what_a_variable_and_a_byte_cost(load: Load) -> None:
    """Times that were made from two numbers give them back."""
    variables = load(PUBLISHED, "variables")
    cost = variables.Cost(seconds_per_variable=1e-4, seconds_per_byte=1e-9)

    assert variables.fitted({model: cost.seconds(found) for model, found in variables.MODELS.items()}) == pytest.approx(cost)


COMPARED = STUDIES / "04-simulated-against-measured"


def test_study_04_predicts_what_it_has_committed(load: Load, tmp_path: Path) -> None:
    """The same row for a padded cluster, which this machine does not change."""
    load(COMPARED, "predict").main(["--folder", str(tmp_path), "--clusters", "padded", "--methods", "ssgd", "ssp", "--repeats", "1"])

    found, committed = rows(tmp_path / "predictions.csv"), rows(COMPARED / "predictions.csv")
    assert [row["method"] for row in found] == ["ssgd", "ssp"]
    assert all(row in committed for row in found)


def test_study_04_reports_what_its_runs_say(load: Load, tmp_path: Path) -> None:
    """Its tables follow from the predictions and the runs of ten methods: five on each of eight clusters, fewer in later rounds."""
    for name in ("predictions.csv", "results.csv"):
        shutil.copy(COMPARED / name, tmp_path)

    load(COMPARED, "evaluate").main(["--folder", str(tmp_path)])

    assert (tmp_path / "tables.md").read_text(encoding="utf-8") == (COMPARED / "tables.md").read_text(encoding="utf-8")
    round_of = {cluster.name: cluster.round for cluster in load(COMPARED, "cases").CLUSTERS}
    of_rounds = {"predictions.csv": (5, 5, 3, 3, 3, 3, 3, 3, 3), "results.csv": (5, 5, 2, 2, 3, 2, 2, 2, 2)}
    for name, repeats in of_rounds.items():
        runs = Counter((row["cluster"], row["method"]) for row in rows(COMPARED / name))
        assert len(runs) == 280
        assert all(count == repeats[round_of[cluster] - 1] for (cluster, _), count in runs.items())
    assert len({cluster for cluster, _ in runs if "held_out" in cluster}) == 5


@pytest.mark.slow
def test_study_04_measures(load: Load, tmp_path: Path) -> None:
    """Real processes leave a row; a second call goes on, and finds nothing left to do."""
    few = ["--folder", str(tmp_path), "--clusters", "padded", "--methods", "asgd", "--repeats", "1", "--seconds", "0.3"]
    for _ in range(2):
        load(COMPARED, "measure").main(few)

    (row,) = rows(tmp_path / "results.csv")
    assert sum(float(row[name]) for name in ("compute", "communication", "server", "waiting", "absent")) == pytest.approx(1, abs=1e-3)
    assert float(row["updates_per_second"]) > 0


DYNAMIC, WEIGHTED, SCALE = (STUDIES / name for name in ("01-dynamic-batch-size", "03-gradient-weighting", "05-scale"))
DELAY = STUDIES / "02-one-step-delay"


@pytest.mark.parametrize("study", [WEIGHTED, DYNAMIC, DELAY, SCALE], ids=lambda study: study.name)
@pytest.mark.sampled(1)
def test_a_study_of_a_claim_reports_what_its_runs_say(study: Path, load: Load, tmp_path: Path) -> None:
    """Its tables follow from results.csv, in which every run in virtual time has as many seeds as any other."""
    for path in study.glob("*.csv"):
        shutil.copy(path, tmp_path)

    load(study, "evaluate").main(["--folder", str(tmp_path)])

    assert (tmp_path / "tables.md").read_text(encoding="utf-8") == (study / "tables.md").read_text(encoding="utf-8")
    seeds = Counter(int(row["seed"]) for row in rows(study / "results.csv") if row.get("backend") != "dist")
    assert set(seeds) >= set(range(5))
    assert len({seeds[seed] for seed in range(5)}) == 1


@pytest.mark.parametrize("study", [DYNAMIC, WEIGHTED], ids=lambda study: study.name)
def test_a_study_of_a_claim_tunes_every_method_by_the_same_budget(study: Path, load: Load) -> None:
    """In each regime every method has each rate of the grid with each of the tuning seeds, and five others at the rate that was chosen."""
    training, train = load(study, "training"), load(study, "train")
    found = rows(study / "results.csv")

    for grid, convolutions in ((train.GRID, False), (train.CONVOLUTIONS, True)):
        results = training.Results(found, grid.common)
        regimes = results.regimes(convolutions=convolutions)
        assert regimes
        for regime, method in product(regimes, grid.methods):
            one = replace(regime, method=method)
            tuning = [row for row in training._of(found, one) if int(row["seed"]) in training.TUNING_SEEDS]
            assert Counter(float(row["rate"]) for row in tuning) == dict.fromkeys(grid.rates, 2)
            assert [int(row["seed"]) for row in results.runs(regime, method)] == [0, 1, 2, 3, 4]
            assert [int(row["seed"]) for row in results.runs(regime, method, tuned=False)] == [0, 1, 2, 3, 4]


COMPOSED = STUDIES / "06-compositions"


def test_study_06_reports_what_its_runs_say(load: Load, tmp_path: Path) -> None:
    """Its tables follow from its runs, in which all that is reported has the same five seeds."""
    for path in COMPOSED.glob("*.csv"):
        shutil.copy(path, tmp_path)

    load(COMPOSED, "evaluate").main(["--folder", str(tmp_path)])

    assert (tmp_path / "tables.md").read_text(encoding="utf-8") == (COMPOSED / "tables.md").read_text(encoding="utf-8")
    seeds = Counter(int(row["seed"]) for row in rows(COMPOSED / "results.csv") if row["stage"] == "fresh")
    assert sorted(seeds) == [0, 1, 2, 3, 4]
    assert len(set(seeds.values())) == 1


def test_study_06_tunes_every_composition_by_the_same_budget(load: Load) -> None:
    """All settings on one seed and at least the best four on two more; a search tries as many settings as the plain methods have."""
    train, compositions = load(COMPOSED, "train"), load(COMPOSED, "compositions")
    found = rows(COMPOSED / "results.csv")
    plain = set(map(str, compositions.PLAIN.values()))

    for regime in train.regimes():
        runs = train.here(found, regime)
        searched = {(row["composition"], row["momentum"], row["rate"]) for row in runs if row["stage"] == "search"}
        assert len(searched) == train.TRIALS == sum(len(train.RATES[m]) for made in compositions.PLAIN.values() for m in made.momenta)
        for composition in train.tuned_here(found, regime):
            tried = [row for row in runs if row["composition"] == composition and row["stage"] != "fresh"]
            settings = Counter((float(row["momentum"]), float(row["rate"])) for row in tried)
            momenta = compositions.Composition.of(composition).momenta
            assert set(settings) >= {(momentum, rate) for momentum in momenta for rate in train.RATES[momentum]}
            assert sum(count == 3 for count in settings.values()) >= train.BEST
        assert plain <= {row["composition"] for row in runs}


def test_study_06_tunes_every_method_on_the_language_model_by_the_same_budget(load: Load) -> None:
    """The best rate of a grid has both neighbours, unless the grid was continued as far as any; its seed does not judge."""
    language = load(COMPOSED, "language")
    judged = language.Judged(rows(COMPOSED / "language.csv"))

    assert judged.entrants == list(language.ENTRANTS)
    for one in judged.entrants:
        seeds = list(judged.judged(one.name))
        assert seeds == list(range(len(seeds)))
        tried = {int(row["steps"]) for row in judged.table if row["method"] == one.name and int(row["seed"]) == language.TUNING_SEED}
        best = language.chosen(judged.table, one.name)
        assert tried >= {-1, 0, 1}
        assert {best - 1, best + 1} <= tried or max(map(abs, tried)) == 1 + language.MOST_FURTHER


def test_study_06_compares_all_methods_on_its_cluster_or_says_why_not(load: Load) -> None:
    """The language model's cluster is that of the other runs; its section names each method that is left out."""
    language, training = load(COMPOSED, "language"), load(COMPOSED, "training")
    section = (COMPOSED / "README.md").read_text(encoding="utf-8").partition("\n### A language model\n")[2].partition("\n### ")[0]
    left_out = {path.stem for path in (configs() / "method").glob("*.yaml")} - {one.method for one in language.ENTRANTS}

    assert parse_cluster(language.CLUSTER).nodes == training.cluster("1:4", 8).nodes
    assert all(f"`{name}`" in section for name in left_out)


def test_study_06_chooses_without_the_seeds_that_judge(load: Load) -> None:
    """With other losses on these, the same settings, winners and best plain methods are chosen."""
    evaluate = load(COMPOSED, "evaluate")
    found = rows(COMPOSED / "results.csv")
    others = [row | {"loss": str(index % 7 + 0.1)} if row["stage"] == "fresh" else row for index, row in enumerate(found)]
    first, second = evaluate.Results(found), evaluate.Results(others)

    for regime in first.regimes():
        assert first.winner(regime) == second.winner(regime)
        assert first.best_plain(regime) == second.best_plain(regime)
        assert [first.chosen(regime, made) for made in first.compositions()] == [
            second.chosen(regime, made) for made in first.compositions()
        ]
        assert first.numbers(regime, first.winner(regime), "loss") != second.numbers(regime, first.winner(regime), "loss")


def test_study_06_can_run_whatever_a_search_may_suggest(load: Load) -> None:
    """Every combination of choices that its space has, and no plain method is outside it."""
    train, compositions = load(COMPOSED, "train"), load(COMPOSED, "compositions")
    regime = train.Trial(0, 8, "1:4", "by speed", momentum=0.9, rate=0.01)
    every = [
        compositions.Composition(versions, split, weights, delays)
        for versions in compositions.VERSIONS
        for split in compositions.SPLITS
        for delays in compositions.corrections(versions)
        for weights in compositions.weights(versions, split, delays)
    ]

    experiments = [replace(regime, composition=str(made)).experiment("none") for made in every]

    assert len({repr((made.coordination, made.local_optimizer)) for made in experiments}) == len(every) == 126
    assert set(compositions.PLAIN.values()) | {compositions.PILOT} <= set(every)


def test_study_06_stretches_a_cluster_and_nothing_else_changes(load: Load) -> None:
    """Everything takes as many times as long, so the same versions are made of the same gradients."""
    train, measure, training = load(COMPOSED, "train"), load(COMPOSED, "measure"), load(COMPOSED, "training")
    trial = train.Trial(0, 4, "1:4", "shared", "every_gradient, dbs, means, no correction", rate=0.05)
    once = trial.experiment("none")
    longer = replace(
        once,
        cluster=measure.stretched(training.cluster("1:4", 4), 60.0),
        budget=replace(once.budget, seconds=60.0 * trial.seconds),
        evaluate_every_seconds=60.0 * trial.seconds,
    )

    first, second = (train.Simulation(made).run() for made in (once, longer))

    assert second["seconds"] == pytest.approx(60.0 * first["seconds"])
    assert second["final"] == pytest.approx(first["final"])
    assert second["num_updates"] == first["num_updates"] > 20


def test_study_02_tunes_every_method_by_the_same_budget(load: Load) -> None:
    """Twelve settings with two tuning seeds for each method, where it is tuned; the best and the common one with five others."""
    train, evaluate = load(DELAY, "train"), load(DELAY, "evaluate")
    results = evaluate.Results(rows(DELAY / "results.csv"))

    for regime, methods in results.regimes.items():
        for method in methods:
            one = replace(regime, method=method)
            tuning = [row for row in train.of(results.table, train.tuned_in(one)) if int(row["seed"]) in train.TUNING_SEEDS]
            found = Counter(tuple(float(row[name]) for name in ("momentum", "rate", "local_rate")) for row in tuning)
            assert found == dict.fromkeys(train.settings(method), 2)
            assert len(found) == 12
            for setting in (train.tuned(results.table, one), train.common(method)):
                assert [int(row["seed"]) for row in results.runs(one, setting)] == [0, 1, 2, 3, 4]


def test_a_study_goes_on_where_it_was_stopped(load: Load, tmp_path: Path) -> None:
    """A run that is in the table is not made again, and a row that was not finished is."""
    common = load(SCALE, "common")
    made: list[int] = []

    def make() -> dict[str, object]:
        made.append(1)
        return {"rate": 0.123456}

    for _ in range(2):
        assert common.Runs(tmp_path / "results.csv", ["seed"], ["rate"]).row({"seed": 0}, make)["rate"] == "0.12346"
    with (tmp_path / "results.csv").open("a", encoding="utf-8") as file:
        file.write("1")
    common.Runs(tmp_path / "results.csv", ["seed"], ["rate"]).row({"seed": 1}, make)

    assert len(made) == 2
    assert rows(tmp_path / "results.csv") == [{"seed": "0", "rate": "0.12346"}, {"seed": "1", "rate": "0.12346"}]


def test_study_01_equal_steps_make_delays_uniform(load: Load) -> None:
    """Dynamic batch sizes make all workers' mean delays alike, after the even first split; without them they go against the speeds."""
    train, training = load(DYNAMIC, "train"), load(DYNAMIC, "training")
    run = training.Run("digits", 8, "1:20", "shared", method="", epochs=20, rate=0.01)

    delays = {}
    for method in ("asgd", "dbs_sgd"):
        coordination = train.METHODS[method](8)
        found = training.train(replace(run, method=method), coordination, "none", momentum=0.0)
        delays[method] = [float(delay) for delay in found["mean_delays"].split()]

    assert delays["asgd"][0] > 5 * delays["asgd"][-1]
    assert max(delays["dbs_sgd"]) < 1.5 * min(delays["dbs_sgd"])


@pytest.mark.parametrize("links", ["private", "shared", "ring"])
def test_study_02_a_delay_takes_the_longer_part(load: Load, links: str) -> None:
    """Without noise, synchronous SGD takes a gradient and its communication, OD-SGD the longer of both."""
    cases = load(DELAY, "cases")
    alone = cases.SHARE * cases.PER_SAMPLE

    for ratio in (0.5, 2.0):
        run = cases.Run("phantom", 4, "1:1 steady", "shared", method="", epochs=0, links=links, ratio=ratio)
        rates = {method: replace(run, method=method).time()["samples_per_second"] for method in ("ssgd", "od_sgd")}
        assert rates["ssgd"] == pytest.approx(4 * cases.SHARE / (alone * (1 + ratio)), rel=0.03)
        assert rates["od_sgd"] == pytest.approx(4 * cases.SHARE / (alone * max(1, ratio)), rel=0.03)


def test_study_02_links_and_speeds_change_only_the_clock_of_od_sgd(load: Load) -> None:
    """On a ring and with unequal nodes it ends with the same loss as around a server with equal ones: so it is tuned once."""
    cases = load(DELAY, "cases")
    run = cases.Run("digits", 4, "1:1", "shared", method="od_sgd", epochs=6, rate=0.05, local_rate=0.1, momentum=0.9)

    one, ring, slow = (other.make("none") for other in (run, replace(run, links="ring"), replace(run, speeds="1:4", ratio=0.3)))

    assert ring["loss"] == pytest.approx(one["loss"], rel=1e-3)
    assert slow["loss"] == one["loss"]
    assert slow["samples_per_second"] < 0.5 * one["samples_per_second"]


def test_study_03_weighted_means_are_the_gradient_of_the_whole_batch(load: Load) -> None:
    """On shared data hetgrad ends where equal batches end, whatever the split, to rounding; unweighted means do not."""
    train, training = load(WEIGHTED, "train"), load(WEIGHTED, "training")
    run = training.Run("digits", 4, "1:16", "shared", method="", epochs=2, rate=0.05)

    losses = {
        method: training.train(replace(run, method=method), make(4), "none", momentum=0.9)["loss"] for method, make in train.METHODS.items()
    }

    assert losses["hetgrad"] == pytest.approx(losses["ssgd"], rel=1e-3)
    assert losses["static"] != pytest.approx(losses["ssgd"], rel=1e-2)
    assert training.noise([5, 5, 5]) == pytest.approx(1)
    assert training.noise([1, 3]) == pytest.approx(4 / 3)


def test_study_05_a_server_gives_no_more_than_its_link(load: Load) -> None:
    """A busy server of one machine applies as many gradients a second as its link carries; 64 nodes that never wait are 64 times one."""
    cases = load(SCALE, "cases")

    busy, commits = cases.simulate("asgd", cases.cluster("equal", 64, 0), seed=0, num_updates=640, nbytes=4e6)
    alone = cases.SHARE * 64 / cases.first_gradients(cases.cluster("1:1", 64, 0, links=False), 64, each=1, seed=0, num_versions=1)

    assert commits.rate(0.5) / cases.SHARE == pytest.approx(cases.LINK / 4e6, rel=0.15)
    assert busy["staleness_max"] >= 63
    assert alone == pytest.approx(64 * cases.SHARE / cases.compute_seconds(), rel=0.35)


SPOT = STUDIES / "09-spot"


def test_study_09_makes_again_what_followed_the_last_checkpoint(load: Load) -> None:
    """All nodes are lost after 1500 s, for 300 s: an all-reduce resumes at its checkpoint of 1200 s, and a server's workers wait."""
    cases = load(SPOT, "cases")
    market = cases.Market("made", 2, (2,) * 5 + (0,) + (2,) * 94)
    num_samples = 2_000_000
    spot, fixed = (cases.mix(market, part, 0) for part in (0.0, 1.0))

    alone = {method: cases.job(method, fixed, num_samples) for method in cases.METHODS}
    jobs = {method: cases.job(method, spot, num_samples) for method in cases.METHODS}

    for method in ("ssgd", "ssgd_torchrun", "local_sgd"):
        assert alone[method].restarts == 0
        assert jobs[method].restarts == 1
        assert jobs[method].seconds - alone[method].seconds == pytest.approx(300 + 300 + cases.BOOT + cases.RESTART, abs=60)
        assert jobs[method].repeated == pytest.approx(300 / alone[method].seconds * num_samples, rel=0.15)
    for method in cases.SERVERS:
        assert jobs[method].seconds - alone[method].seconds == pytest.approx(300 + cases.BOOT, abs=10)
        assert jobs[method].repeated == 0
    assert spot.dollars(3600, server=False) == pytest.approx(2 * cases.SPOT * 3300 / 3600)
    assert fixed.dollars(3600, server=True) == pytest.approx(2 * cases.ON_DEMAND + cases.SERVER)


def test_study_09_reports_what_its_runs_say(load: Load, tmp_path: Path) -> None:
    """Its tables follow from its jobs, of which each method and mix with spot nodes has the same twelve starts."""
    for path in SPOT.glob("*.csv"):
        shutil.copy(path, tmp_path)

    load(SPOT, "evaluate").main(["--folder", str(tmp_path)])

    assert (tmp_path / "tables.md").read_text(encoding="utf-8") == (SPOT / "tables.md").read_text(encoding="utf-8")
    jobs = Counter((row["trace"], row["method"], row["mix"], row["interval"]) for row in rows(SPOT / "results.csv"))
    assert len(jobs) == 2 * (7 * 3 + 4)
    assert all(count == (1 if mix == "on demand" else 12) for (_, _, mix, _), count in jobs.items())


GPUS = STUDIES / "08-published-gpus"


def test_study_08_simulates_the_closed_form(load: Load) -> None:
    """Of a step of DDP, on a small, a hidden and a large all-reduce; a round of local steps waits for its slowest rank."""
    simulated = load(GPUS, "simulated")

    for compute, reduction, num_gpus in product((0.01, 0.3), (0.0, 0.02, 0.9), (2, 5)):
        closed = float(simulated.step_seconds(compute, reduction))
        assert simulated.simulated_step(compute, reduction, num_gpus) == pytest.approx(closed, rel=1e-9)
    assert simulated.simulated_round(8, (0.02, 0.02, 0.025), 0.3) == pytest.approx(8 * 0.025 + 0.3, rel=1e-9)


def test_study_08_finds_what_a_series_was_made_of(load: Load) -> None:
    """Steps of a placement that were made with known s and R give these back, and so the steps between."""
    sia, simulated = load(GPUS, "sia"), load(GPUS, "simulated")
    alone = {4: 0.1, 16: 0.2, 64: 0.6}
    losses = {"2": 0.1, "11": 0.15, "22": 0.25}
    points = [sia.Point("1", batch, seconds) for batch, seconds in alone.items()]
    points += [sia.Point(place, b, float(simulated.step_seconds(alone[b], r))) for place, r in losses.items() for b in (4, 64)]
    series = sia.Series("model", "gpu", tuple(points))

    found = series.predict([(place, batch) for place in losses for batch in (4, 16, 64)], sia.LAWS[0], simulate=True)

    made = [float(simulated.step_seconds(alone[batch], r)) for r in losses.values() for batch in (4, 16, 64)]
    assert found == pytest.approx(made, rel=0.02)


def test_study_08_predicts_what_is_shipped_as_it_was_committed(load: Load, tmp_path: Path) -> None:
    """Gavel's and DiLoCo's predictions follow from the files in its folder, and a prediction is not revised."""
    predict = load(GPUS, "predict")

    predict.main(["--quick", "--folder", str(tmp_path)])

    for name in ("gavel", "diloco"):
        again, committed = rows(tmp_path / f"predictions-{name}.csv"), rows(GPUS / f"predictions-{name}.csv")
        assert again == committed[: len(again)]
    lengths = {"sia": 5460, "lambda": 1559, "gavel": 224, "diloco": 47}
    assert {name: len(rows(GPUS / f"predictions-{name}.csv")) for name in predict.PREDICTED} == lengths
