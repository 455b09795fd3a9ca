"""The mistakes that the fuzzer makes in a config: each adds words, and perhaps files, to a draft, which hetsim should refuse."""

from __future__ import annotations

from collections.abc import Callable

import known_keys
from drawn_changes import BUDGET, drawn_class, fitting_leaf, plus, set_cluster
from drawn_draft import Draft
from drawn_files import spoil_file
from drawn_torch import spoil_torch
from drawn_values import hostile, like, misspelt, text


def choose_wrongly(draft: Draft) -> None:
    """A choice that does not exist, or is no word."""
    rng = draft.rng
    group = rng.choice([*known_keys.groups(), "hydra/launcher", "hydra/sweeper", "hydra/job_logging", "hydra"])
    choice = rng.choice(known_keys.groups().get(group, ("basic",)))
    wrong = (misspelt(rng, choice), f"[{choice}]", "[]", "1", "null", "true", "''", "{}", f"{choice}.yaml", f"../{choice}", f"'{choice} '")
    forms = (
        f"{group}={rng.choice(wrong)}",
        f"+{group}={choice}",
        f"~{group}",
        f"~{group}={choice}",
        f"{group}@seed={choice}",
        f"/{group}={choice}",
    )
    draft.words.append(rng.choice((forms[0], forms[0], forms[0], *forms, f"{group}={hostile(rng)}", f"{group}@_global_={choice}")))


def set_leaf_wrongly(draft: Draft) -> None:
    """A key of conf/, or the mapping that it is in, with a hostile value."""
    rng = draft.rng
    key = fitting_leaf(draft)
    if "." in key and rng.random() < 0.15:
        key = key.rpartition(".")[0]
    draft.words.append(f"{plus(draft)}{key}={_hostile_for(draft, key)}")


def set_field_wrongly(draft: Draft) -> None:
    """The same with a hostile value."""
    group, target = drawn_class(draft)
    name = draft.rng.choice(list(known_keys.fields(target)))
    draft.words.append(f"++{group}.{name}={hostile(draft.rng, f'{group}.{name}')}")


def add_unknown(draft: Draft) -> None:
    """A key that nobody knows, with and without a plus."""
    rng = draft.rng
    parent = rng.choice(
        ("", "", "hydra.", *(f"{group}." for group in known_keys.groups()), "budget.", "cluster.network.", "cluster.server.")
    )
    known = [key.removeprefix(parent) for key in known_keys.leaves() if key.startswith(parent)] or ["seed"]
    name = rng.choice(
        ("nothing", "_args_", "_partial_", "_convert_", "_recursive_", "defaults", "ü", "1", "a.b.c", misspelt(rng, rng.choice(known)))
    )
    draft.words.append(f"{rng.choice(('+', '++', ''))}{parent}{name}={rng.choice(('1', hostile(rng)))}")


def remove(draft: Draft) -> None:
    """A key taken away, or the mapping that it is in."""
    rng = draft.rng
    key = rng.choice([key for key in known_keys.fitting(draft.choices) if key not in BUDGET] or ["seed"])
    draft.words.append(f"~{key.rpartition('.')[0] or key}" if rng.random() < 0.2 else f"~{key}" if rng.random() < 0.9 else f"~{key}=1")


def spoil_cluster(draft: Draft) -> None:
    """A whole cluster with something hostile in one place."""
    set_cluster(draft, spoilt=True)


def set_target(draft: Draft) -> None:
    """A `_target_` of another axis, a private one, a function, a module, one from elsewhere; at a group or deeper."""
    rng = draft.rng
    key = rng.choice((*known_keys.groups(), "learning_rate_schedule", "budget", "cluster.nodes", "workload.model_options", "hydra"))
    touch = "pathlib.Path('code-ran').touch"
    names = (
        *known_keys.targets().values(),
        *("os.getcwd", "builtins.open", "subprocess.run", "hetsim.cli.main.main", "hetsim.checks.whole", "hetsim.trust.names.importlib"),
        *(
            "hetsim.policies.allocation.base.Allocation",
            "hetsim.cluster.model.NodeSpec",
            "hetsim.policies",
            "hetsim",
            "torch.optim",
            "torch.load",
        ),
        *(
            "hetsim.coordination.base.Coordination",
            "hetsim.runtime.world.World",
            "hetsim.sim.world.EventWorld",
            "",
            ".",
            "..",
            "a..b",
            "1",
            touch,
        ),
        *(
            "torch.optim.lr_scheduler.LRScheduler",
            "torch.optim.Optimizer",
            "torch.optim.sgd._single_tensor_sgd",
            "ünïcode.Name",
            "code_ran.Rule",
        ),
    )
    name = rng.choice(names)
    name = misspelt(rng, name) if name and rng.random() < 0.1 else name
    name = hostile(rng) if rng.random() < 0.1 else text(name)
    where = rng.choice((f"{key}._target_", f"{key}._target_", f"+{key}.inner", f"++{key}.inner._target_"))
    draft.words.append(f"{where}={name}" if where.endswith("_target_") else f"{where}={{_target_: {name}}}")
    draft.files["code_ran.py"] = "open('code-ran', 'w')\nclass Rule: pass\n"
    if rng.random() < 0.2:
        trusted = ("[code_ran.sub]", "[os]", "[builtins]", "[nothing]", "os", "[1]", "[hetsim]", hostile(rng))
        draft.words.append(f"trust={rng.choice(trusted)}")


def sweep_wrongly(draft: Draft) -> None:
    """Two runs, of which one or both may be wrong, or a search that cannot be."""
    rng = draft.rng
    key = rng.choice([key for key in known_keys.fitting(draft.choices) if key not in BUDGET] or ["seed"])
    values = [text(like(rng, known_keys.leaves()[key][0], key)) if rng.random() < 0.5 else hostile(rng, key) for _ in range(2)]
    draft.words += ["-m", f"{plus(draft)}{key}={','.join(values)}"]
    if rng.random() < 0.2:
        draft.words.append(
            f"hydra.sweep.{rng.choice(('dir', 'subdir'))}={rng.choice(('a', 'sweep', '${nothing}', '/proc/a', hostile(rng)))}"
        )


def mistype(draft: Draft) -> None:
    """Words that are no overrides, or only with difficulty."""
    rng = draft.rng
    malformed = (
        *("seed", "=1", "seed=", "seed==1", "seed=1=2", "seed =1", " seed=1", "seed= 1", "", " ", "=", "+", "~", "++", "+seed=1", "~~seed"),
        *(
            "seed=1 2",
            "seed=(1",
            "seed={",
            "seed=]",
            "cluster.nodes[0].count=2",
            "cluster.nodes.0.count=2",
            "cluster..name=a",
            ".seed=1",
            "seed.=1",
        ),
        *(
            "seed.a=1",
            "seed.a.b=1",
            "budget=1",
            "-m",
            "é=1",
            "se ed=1",
            "'seed'=1",
            "seed='1",
            'seed="',
            "seed=\\",
            "@=1",
            "seed@=1",
            "seed:1",
        ),
        *(
            "seed=1,",
            "seed=,1",
            "seed=1,2",
            "/seed=1",
            "hydra=1",
            "hydra.mode=MULTIRUN",
            "hydra.mode=x",
            "hydra.verbose=[a]",
            "hydra.job.name=1",
        ),
        *(
            "hydra.searchpath=[file:///nowhere]",
            "hydra.searchpath=[a]",
            "hydra.output_subdir=.hydra",
            "hydra.job.chdir=true",
            "hydra.callbacks=null",
        ),
        *(
            "hydra.run.dir=",
            "hydra.run.dir=null",
            "hydra.run.dir=/proc/nothing",
            "hydra.run.dir=[1]",
            f"hydra.run.dir={'n' * 300}",
            "hydra.run.dir=${nothing}",
        ),
        *(
            "hydra.job.env_set.A=1",
            "hydra.job.config.override_dirname.kv_sep=1",
            "hydra.sweep.subdir=1",
            "hydra.sweeper=null",
            "hydra.launcher=null",
        ),
        *(f"seed={'[' * 60}{']' * 60}", f"name{'.a' * 60}=1", "seed=${seed}", "seed=${batch_size} batch_size=${seed}", "a" * 3000 + "=1"),
    )
    draft.words.append(rng.choice((rng.choice(malformed), f"{rng.choice(list(known_keys.leaves()))}{hostile(rng)}", hostile(rng))))


def _hostile_for(draft: Draft, key: str) -> str:
    """A hostile value; none for a budget with which a run would rightly take long."""
    while True:
        value = hostile(draft.rng, key)
        if key not in BUDGET or value in (
            "0",
            "-1",
            "inf",
            "nan",
            "true",
            "''",
            "word",
            "[]",
            "{}",
            "[1]",
            "1e-320",
            "${nothing}",
            "1,2",
            "${",
            "{a: 1}",
        ):
            return value


HOSTILE: dict[str, tuple[Callable[[Draft], None], float]] = {
    "set_leaf_wrongly": (set_leaf_wrongly, 5),
    "set_field_wrongly": (set_field_wrongly, 5),
    "spoil_cluster": (spoil_cluster, 4),
    "set_target": (set_target, 2),
    "mistype": (mistype, 1.5),
    "choose_wrongly": (choose_wrongly, 1),
    "add_unknown": (add_unknown, 1),
    "remove": (remove, 1),
    "sweep_wrongly": (sweep_wrongly, 1),
    "spoil_torch": (spoil_torch, 3),
    "spoil_file": (spoil_file, 2),
}
"""The changes that hetsim should refuse, most of the time. One hides the others, so that a config has few of them."""
