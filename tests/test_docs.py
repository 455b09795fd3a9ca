"""What the pages under docs/ say of the methods is true: their code is the code, their commands run, their tables are whole."""

from __future__ import annotations

import json
import re
import shlex
import sys
import textwrap
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import mutations
import pages
import pytest
from methods import SHIPPED
from mutations import MUTATIONS
from omegaconf import OmegaConf
from pages import loaded
from quotas import refused
from worlds import experiment, simulate

from hetsim import checks
from hetsim.cli import methods as command
from hetsim.cli.compare import main as compare_main
from hetsim.cli.main import main
from hetsim.cli.table import main as table_main
from hetsim.cluster.network.collectives import ALGORITHMS, AUTO
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.config import methods
from hetsim.config.build import build_experiment
from hetsim.config.compose import composed
from hetsim.config.plausible import implausible
from hetsim.results.tables.metrics import METRICS
from hetsim.runtime.world import effect_types
from hetsim.trust.shipped import configs

DOCS = Path(__file__).parents[1] / "docs"
EXAMPLE = DOCS / "example"
PAGE = pages.text("methods.md")
OWN = pages.text("own-method.md")
COMPARISON = pages.text("compare.md")
OWN_WORKLOAD = pages.text("own-workload.md")
CLUSTER = pages.text("cluster.md")
EXPERIMENTS = sorted(path.stem for path in (configs() / "experiment").glob("*.yaml"))
SMALLER = {
    "phantom": {"num_parameters": 1000, "num_samples": 5000},
    "tiny_lm": {"width": 4, "num_layers": 1, "context_length": 8},
    "digits": {"model_options": {"width": 2}},
}
"""The workload of each experiment, so small that its test takes little time; digits for images."""


def test_the_code_in_methods_md_is_the_code() -> None:
    """Every quoted function, and the table of methods: `python docs/refresh.py` changes nothing."""
    assert loaded(DOCS / "refresh.py").refreshed(PAGE) == PAGE
    assert PAGE.count("<!-- source: ") > 20


@pytest.mark.parametrize(("page", "quoted"), [("cluster.md", "source: "), ("catalogue.md", "catalogue: gpus")])
def test_what_a_page_quotes_is_the_code(page: str, quoted: str) -> None:
    """`python docs/refresh.py` changes nothing."""
    text = pages.text(page)

    assert loaded(DOCS / "refresh.py").refreshed(text) == text
    assert f"<!-- {quoted}" in text


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="argparse prints other texts from Python 3.13 on")
def test_the_help_in_commands_md_is_what_the_commands_print() -> None:
    """`python docs/refresh.py` changes nothing, and each command of the package has a section."""
    commands = pages.text("commands.md")
    scripts = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]

    assert loaded(DOCS / "refresh.py").refreshed(commands) == commands
    assert set(re.findall(r"^\| `([\w-]+)`", commands, flags=re.MULTILINE)) == set(scripts)
    assert {"hetsim", *re.findall(r"^<!-- help: ([\w-]+) -->", commands, flags=re.MULTILINE)} == set(scripts)


def clusters_described(folder: Path) -> list[Any]:
    """Each example of cluster.md, with what it leaves out, and each shipped cluster of nodes; recorded slowdowns lie in this folder.

    `synthetic64` has the keys of the larger ones.
    """
    (folder / "load.csv").write_text(re.findall(r"```csv\n(.*?)```", CLUSTER, flags=re.DOTALL)[0], encoding="utf-8")
    paths = [path for path in sorted((configs() / "cluster").glob("*.yaml")) if not path.stem.startswith(("synthetic1", "machines"))]
    shipped = [path.read_text(encoding="utf-8") for path in paths]
    base = OmegaConf.load(configs() / "cluster" / "uniform4.yaml")
    return [
        OmegaConf.to_container(OmegaConf.merge(base, OmegaConf.create(text)))
        for text in [*re.findall(r"```yaml\n(.*?)```", CLUSTER, flags=re.DOTALL), *shipped]
    ]


def test_every_key_of_a_cluster_is_in_cluster_md(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All examples describe clusters, and what the description knows while they do, the page names."""
    monkeypatch.chdir(tmp_path)
    known: dict[str, set[str]] = {}
    check = checks.mapping

    def recording(key: str, value: Any, *, required: Collection[str] = (), optional: Collection[str] | None = (), **more: Any) -> Any:
        known.setdefault(re.split(r"\.\d", key)[0], set()).update(required, optional or ())
        return check(key, value, required=required, optional=optional, **more)

    monkeypatch.setattr(checks, "mapping", recording)
    for config in clusters_described(tmp_path):
        parse_cluster(config)

    assert {"cluster", "cluster.nodes", "cluster.network", "cluster.server", "cluster.faults", "cluster.faults.schedule"} <= set(known)
    in_code = " ".join(re.findall(r"`[^`\n]+`", CLUSTER))
    unnamed = {(part, key) for part, keys in known.items() for key in keys if not re.search(rf"\b{key}\b", in_code)}
    assert not unnamed


def test_every_all_reduce_is_in_cluster_md() -> None:
    """In the row of its key, and with its steps."""
    (row,) = re.findall(r"^\| `all_reduce` \| \|(.*)", CLUSTER, flags=re.MULTILINE)

    assert set(re.findall(r"`(\w+)`", row)) == {*ALGORITHMS, AUTO}
    assert set(re.findall(r"^> `(\w+)`: ", CLUSTER, flags=re.MULTILINE)) >= {*ALGORITHMS, AUTO}


def test_every_effect_is_explained() -> None:
    """In the table of own-method.md; those that programs of one's own do not ask for, in design.md."""
    named = [set(re.findall(r"`(\w+)\(", pages.text(page))) for page in ("own-method.md", "design.md")]

    assert {kind.__name__ for kind in effect_types()} - named[0] == {"GradientSum", "Regroup"}
    assert named[1] >= {"GradientSum", "Regroup"}


def test_every_number_to_rank_by_is_in_sweeps_md() -> None:
    """In the table below `--metric NAME`."""
    (table,) = re.findall(r"^\| number \| what it is \|\n(.*?)\n\n", pages.text("sweeps.md"), flags=re.MULTILINE | re.DOTALL)
    named = [name for row in re.findall(r"^\|([^|]*)\|", table, flags=re.MULTILINE) for name in re.findall(r"`([\w.]+)`", row)]

    assert set(named) == {*METRICS, "final.NAME"}


def test_every_shipped_cluster_is_in_cluster_md() -> None:
    """In the table, by its name."""
    table = CLUSTER.split("| cluster | nodes |")[1].split("\n\n")[0]

    assert sorted(re.findall(r"`(\w+)`", table.replace("`two_level`", "").replace("`halving_doubling`", ""))) == sorted(
        path.stem for path in (configs() / "cluster").glob("*.yaml")
    )


@pytest.mark.long
def test_cluster_mds_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the first example in the file that the page names."""
    whole = re.findall(r"```yaml\n(.*?)```", CLUSTER, flags=re.DOTALL)[0]
    (tmp_path / "my" / "cluster").mkdir(parents=True)
    (tmp_path / "my" / "cluster" / "ours.yaml").write_text(whole, encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", CLUSTER, flags=re.DOTALL)
    commands = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    monkeypatch.chdir(tmp_path)
    for typed in commands:
        if "backend.emulate=quota" in typed and refused() is not None:
            continue
        monkeypatch.setattr(sys, "argv", [*typed, "pictures=false"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code, typed

    assert len(commands) == 9


def test_cluster_mds_pictures_are_those_that_are_drawn() -> None:
    """One file for each function of docs/pictures.py, all of them shown."""
    drawn = {f"cluster-{picture.__name__}.png" for picture in loaded(DOCS / "pictures.py").PICTURES}
    there = {path.name for path in (DOCS / "images").glob("cluster-*.png")}

    assert drawn == there == set(re.findall(r"images/(cluster-\w+\.png)", CLUSTER))


@pytest.mark.parametrize("heading", ["## What it takes on digits", "## The grid behind the rates"])
def test_every_method_is_in_every_table(heading: str) -> None:
    """Results and grid have a row for each method that is shipped."""
    section = PAGE.split(heading)[1].split("\n## ")[0]

    assert sorted(set(re.findall(r"^\| `(\w+)`", section, flags=re.MULTILINE))) == SHIPPED


def test_the_sweep_in_methods_md_names_every_method() -> None:
    """The command that made the results table."""
    named = re.search(r"^hetsim -m method=(\S+)", PAGE, flags=re.MULTILINE)

    assert named is not None
    assert sorted(named[1].split(",")) == SHIPPED


def test_hetsim_methods_prints_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Name, line, source and composition of each; as JSON for scripts; only those that were named."""
    monkeypatch.setattr(sys, "argv", ["hetsim-methods"])
    command.main()
    told = capsys.readouterr().out
    for method in methods.shipped():
        assert re.search(rf"^{method.name} +{re.escape(method.about.split()[0])}", told, flags=re.MULTILINE)
        assert method.paper in told
    assert re.findall(r"^# (.+)", told, flags=re.MULTILINE) == list(methods.FAMILIES)
    assert {m.name for m in methods.shipped() if m.family == "local steps"} == {
        *("local_sgd", "diloco", "muloco", "sparse_loco", "streaming_diloco", "decoupled_diloco", "fedbuff", "fedasync", "async_local_sgd"),
        *("mla", "heloco", "cgad"),
    }
    assert {m.name for m in methods.shipped() if m.family == "several servers"} == {"halos"}
    assert "backup" in {m.name for m in methods.shipped() if m.family == "synchronous"}

    monkeypatch.setattr(sys, "argv", ["hetsim-methods", "--json", "ssp"])
    command.main()
    (ssp,) = json.loads(capsys.readouterr().out)
    assert (ssp["name"], ssp["family"]) == ("ssp", "asynchronous, on a server")
    assert (ssp["name"], ssp["composes"]) == ("ssp", "coordination=parameter_server admission=ssp")


def test_hetsim_methods_refuses_an_unknown_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, and a status that is not zero."""
    monkeypatch.setattr(sys, "argv", ["hetsim-methods", "sgd"])
    with pytest.raises(SystemExit) as ended:
        command.main()

    assert ended.value.code == 2
    assert "sgd is not a method: take abs_sgd, acco, asgd" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.sampled(13)
def test_a_method_is_its_sentence(name: str) -> None:
    """The file is called as the method; the choices that it lists are those that it makes; its line fits, and names a source."""
    method = next(method for method in methods.shipped() if method.name == name)

    made = experiment(f"method={name}")
    typed = experiment("method=asgd", *[f"{axis}={choice}" for axis, choice in method.choices.items()], **method.keys)
    assert made.coordination == typed.coordination
    assert re.search(r"arXiv \d{4}\.\d{5}|10\.\d{4}/|NIPS \d+|OpenReview \w+", method.paper)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.sampled(5)
def test_every_experiment_is_one(name: str) -> None:
    """A paper's values make a whole config, and change those that the method ships; it says where they are from; it runs."""
    text = (configs() / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")
    workload = next((one for one in SMALLER if f"/workload: {one}" in text), "digits")
    made = experiment(
        f"experiment={name}",
        f"workload={workload}",
        workload=SMALLER[workload] if workload != "digits" or "model: resnet" in text else {},
        budget={"updates": 3},
        **({"coordination": {"period": 2}} if name == "diloco_500" else {}),
    )

    assert re.search(r"arXiv \d{4}\.\d{5}", text)
    assert made.batch_size != 256 or name == "od_sgd_cifar10"
    assert len(simulate(made).states) == 3
    assert f"`experiment={name}`" in PAGE or f"`{name}`" in PAGE


def test_the_mutation_list_fits_the_code() -> None:
    """Each mutation finds what it replaces, once; each method has one; docs/internals/testing.md quotes them all, and its tests exist."""
    quoted = re.findall(r"^\| `([^`]+)` \| (.+?) \| `(test_\w+)", pages.text("testing.md"), flags=re.MULTILINE)
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py"))

    for mutation in MUTATIONS:
        assert (mutations.ROOT / mutation.file).read_text(encoding="utf-8").count(mutation.old) == 1, mutation
        assert (mutations.ROOT / mutation.tests.split()[0]).is_file(), mutation
    assert {name for mutation in MUTATIONS for name in mutation.method.split(", ")} >= set(SHIPPED)
    assert [(method, broken) for method, broken, _ in quoted] == [(mutation.method, mutation.broken) for mutation in MUTATIONS]
    assert all(f"def {name}(" in tests for _, _, name in quoted)


def test_every_test_file_is_in_testing_md() -> None:
    """By its name, or by its folder's; and every file and folder that the page names is there."""
    page = pages.text("testing.md")
    folder = Path(__file__).parent
    named = {name for name in re.findall(r"`([\w/]+(?:\.py|/))`", page) if not name.startswith("conf/")}

    assert {name for name in named if not (folder / name.removeprefix("tests/")).exists()} == set()
    files = [path.relative_to(folder) for path in folder.rglob("test_*.py")]
    assert len({path.name for path in files}) == len(files)
    assert [path for path in files if str(path) not in named and f"{path.parent}/" not in named] == []


@pytest.mark.long
def test_own_methods_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which they stand, with the examples where Python finds them."""
    blocks = re.findall(r"```sh\n(.*?)```", OWN, flags=re.DOTALL)
    commands = [shlex.split(re.sub(r"(\$PWD/)?docs/example", str(EXAMPLE), line)) for block in blocks for line in block.splitlines()]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    exported = [typed for typed in commands if typed[0] == "export"]
    commands = [typed for typed in commands if typed[0] != "export"]
    for typed in commands:
        monkeypatch.setattr(sys, "argv", typed)
        if typed[0] == "hetsim-compare":
            compare_main()
            continue
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code, typed

    assert exported == [["export", "PYTHONPATH=$PWD"], ["export", f"PYTHONPATH={EXAMPLE}"]]
    assert len(commands) == 10


@pytest.mark.long
def test_own_workloads_page_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its files, saved under the names that they begin with, and its commands, in their order; what is printed of times is exact."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    files = {code.split()[1]: code for code in re.findall(r"```python\n(.*?)```", OWN_WORKLOAD, flags=re.DOTALL)}
    for name, code in files.items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    commands = [shlex.split(line) for block in re.findall(r"```sh\n(.*?)```", OWN_WORKLOAD, flags=re.DOTALL) for line in block.splitlines()]
    assert commands.pop(0) == ["export", "PYTHONPATH=$PWD"]
    told = []
    for typed in commands:
        monkeypatch.setattr(sys, "argv", typed)
        if typed[0] in ("hetsim-compare", "hetsim-table"):
            {"hetsim-compare": compare_main, "hetsim-table": table_main}[typed[0]]()
        else:
            with pytest.raises(SystemExit) as ended:
                main()
            assert not ended.value.code, typed
        told.append(capsys.readouterr().out)

    printed = re.search(r"prints\n\n```\n(.*?)```", OWN_WORKLOAD, flags=re.DOTALL)
    assert printed is not None
    simulated, shown = (re.sub(r"(loss|error) [\d.]+", r"\1", text).splitlines()[:4] for text in (told[0], printed[1]))
    assert simulated == shown
    assert list(files) == ["mymodel.py", "mylanguage.py", "mydictionary.py"]
    assert len(files["mymodel.py"].splitlines()) <= 20
    assert len(commands) == 9
    (table,) = (out for typed, out in zip(commands, told, strict=True) if typed[0] == "hetsim-table")
    assert table.startswith("| method | learning_rate |")
    assert "| seconds to loss 0.45 | gain over `method=ddp` |" in table
    assert "reached by" not in table
    assert sum("backend=dist" in typed for typed in commands) == 2


@pytest.mark.long
def test_the_page_of_comparisons_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its commands run, and print the lines that it shows, with the numbers of this machine."""
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```sh\n(.*?)```", COMPARISON, flags=re.DOTALL)
    for typed in map(shlex.split, block.splitlines()):
        monkeypatch.setattr(sys, "argv", typed)
        capsys.readouterr()
        if typed[0] == "hetsim-compare":
            compare_main()
        else:
            with pytest.raises(SystemExit) as ended:
                main()
            assert not ended.value.code, typed

    (shown,) = re.findall(r"printed\n\n```\n(.*?)```", COMPARISON, flags=re.DOTALL)
    told, names = capsys.readouterr().out, re.compile(r"^[a-z%:]+(?: [a-z/']+)*", flags=re.MULTILINE)
    assert {*names.findall(shown)} <= {*names.findall(told)}
    assert len({*names.findall(shown)}) > 20
    assert {*json.loads(Path("compared.json").read_text())} >= set(re.findall(r"`(\w+)`", COMPARISON[COMPARISON.index("`--json`") :])) - {
        "trace"
    }
    assert Path("runs/pictures/timeline.png").is_file()


def commands_shown() -> list[tuple[str, list[str]]]:
    """Each single run that a page shows: the page, and its words; not those that need files that a page has written before."""
    found = []
    for page in sorted([*DOCS.rglob("*.md"), *(DOCS.parent / "studies").rglob("*.md")]):
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
            for line in re.findall(r"^hetsim (.*)", block, flags=re.MULTILINE):
                if not re.search(r"^-m|--|trust=|resume=|=ours|\\$|…", line):
                    found.append((page.name, shlex.split(line, comments=True)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.long)], ids=["a quarter", "all"])
def test_each_run_that_a_page_shows_can_be_composed(step: int) -> None:
    """Each key and choice is one of today's. `make long` runs the commands of the pages."""
    shown = commands_shown()

    for page, words in shown[::step]:
        try:
            config = composed([word for word in words if not word.startswith("hydra.sweep")])
            experiment, _ = build_experiment(config.entries)
            assert implausible(config.entries, experiment.cluster) == []
        except ValueError as error:
            pytest.fail(f"{page}: hetsim {shlex.join(words)}: {error}")
    assert len(shown) > 12


def test_own_methods_code_is_the_example() -> None:
    """Word for word: the whole file, the listings and the config."""
    source = (EXAMPLE / "mymethods.py").read_text(encoding="utf-8")
    whole, *shown = re.findall(r"```python\n(.*?)```", OWN, flags=re.DOTALL)
    config = re.search(r"```yaml\n(.*?)```", OWN, flags=re.DOTALL)

    assert whole == (EXAMPLE / "skip_slowest.py").read_text(encoding="utf-8")
    assert len(shown) == 4
    assert all(listing in source for listing in shown[:3])
    assert textwrap.indent(shown[3], "    ") in source
    assert config is not None
    assert config[1] == (EXAMPLE / "conf" / "method" / "accumulate.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("change", [{}, {"weighting": {"_target_": "hetsim.policies.weighting.PerSample"}}], ids=["even", "per_sample"])
def test_the_whole_file_is_the_method_that_the_page_names(monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]) -> None:
    """`backup`, time by time and bit by bit, also in its last, shorter batch."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    keys = {"workload": {"num_samples": 100, "num_parameters": 4}, "batch_size": 31, "trust": ["skip_slowest"], "budget": {"epochs": 2.3}}
    keys |= change
    shipped = simulate(experiment("method=backup", "workload=quadratic", **keys))
    own = experiment(
        "method=ssgd", "coordination=parameter_server", "workload=quadratic", **keys, admission={"_target_": "skip_slowest.SkipSlowest"}
    )
    told = simulate(own)

    assert told.seconds == shipped.seconds
    assert [state.weights.tolist() for state in told.states] == [state.weights.tolist() for state in shipped.states]


def test_the_example_has_the_identity_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """With period 1 it is synchronous SGD, time by time and bit by bit; with more it steps less often."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    keys = {"workload": {"num_samples": 100, "num_parameters": 4}, "batch_size": 31, "trust": ["mymethods"], "budget": {"epochs": 2.3}}

    def accumulated(period: int) -> list[tuple[float, list[float]]]:
        target = {"_target_": "mymethods.Accumulate", "period": period}
        told = simulate(experiment("method=ssgd", "workload=quadratic", **keys, coordination=target))
        return list(zip(told.seconds, [state.weights.tolist() for state in told.states], strict=True))

    plain = simulate(experiment("method=ssgd", "workload=quadratic", **keys))
    assert accumulated(1) == list(zip(plain.seconds, [state.weights.tolist() for state in plain.states], strict=True))
    assert len(accumulated(3)) == 3
