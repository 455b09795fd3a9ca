"""The changes that make a config of the fuzzer out of cheap settings: each adds words, and perhaps files, to a draft."""

from __future__ import annotations

from collections.abc import Callable

import known_keys
from drawn_clusters import SLOWDOWN, drawn_cluster, slowdown
from drawn_draft import Draft
from drawn_files import add_file
from drawn_torch import add_model, add_optimizer, add_schedule
from drawn_values import annotated, like, text

BUDGET = ("budget", "budget.epochs", "budget.updates", "budget.seconds")
"""Where a large value is no mistake but a long run."""


def choose(draft: Draft) -> None:
    """Any choice of any group."""
    groups = [group for group in known_keys.groups() if group != "backend"]
    draft.choose(draft.rng.choice((*("method", "allocation", "cluster") * 3, *groups)))


def set_leaf(draft: Draft) -> None:
    """A key of conf/, with a value of the kind that it has there."""
    rng = draft.rng
    key = fitting_leaf(draft)
    if key not in BUDGET:
        draft.words.append(f"{plus(draft)}{key}={text(like(rng, rng.choice(known_keys.leaves()[key]), key))}")


def set_field(draft: Draft) -> None:
    """An argument of the class that a group's choice names, by its annotation."""
    group, target = drawn_class(draft, plausible=True)
    fields = known_keys.fields(target)
    plain = {name: annotation for name, annotation in fields.items() if name not in known_keys.groups()} or fields
    name, annotation = draft.rng.choice(list(plain.items()))
    draft.words.append(f"++{group}.{name}={text(annotated(draft.rng, annotation, name))}")


def set_cluster(draft: Draft, *, spoilt: bool = False) -> None:
    """A whole cluster, written out as overrides."""
    cluster = drawn_cluster(draft.rng, spoilt=spoilt)
    if SLOWDOWN in str(cluster):
        draft.files[SLOWDOWN] = slowdown(draft.rng)
    for key in known_keys.cluster_keys()[""]:
        if key in cluster:
            draft.words.append(f"++cluster.{key}={text(cluster.pop(key))}")
    draft.words += [f"+cluster.{key}={text(value)}" for key, value in cluster.items()]


def sweep(draft: Draft) -> None:
    """Two runs that should both succeed."""
    group = draft.rng.choice(("optimizer", "weighting", "allocation", "method", "cluster"))
    both = (
        f"seed={draft.rng.randrange(9)},{draft.rng.randrange(9)}",
        f"{group}={','.join(draft.rng.sample(known_keys.groups()[group], 2))}",
    )
    draft.words += ["-m", draft.rng.choice(both)]


def fitting_leaf(draft: Draft) -> str:
    """A key of conf/: one that the present choices have, or any, most of the time after a choice that has it."""
    rng = draft.rng
    if rng.random() < 0.5:
        return rng.choice(known_keys.fitting(draft.choices))
    key = rng.choice(list(known_keys.leaves()))
    group = key.split(".")[0]
    if rng.random() < 0.8 and (having := known_keys.having(group, key)):
        draft.choose(group, rng.choice(having))
    return key


def plus(draft: Draft) -> str:
    """Now and then what adds a key that is not there."""
    return "++" if draft.rng.random() < 0.3 else ""


def drawn_class(draft: Draft, *, plausible: bool = False) -> tuple[str, str]:
    """A group and the class of its choice; half of the time a choice is made first, any argument of any class as likely as any other."""
    rng = draft.rng
    options = {(group, choice): target for (group, choice), target in known_keys.targets().items() if known_keys.fields(target)}
    if plausible:
        options = {place: target for place, target in options.items() if place[0] != "backend"}
    group = rng.choice(sorted({group for group, _ in options}))
    if draft.chosen(group) not in options.values() or rng.random() < 0.5:
        group, choice = rng.choices(list(options), [len(known_keys.fields(target)) for target in options.values()])[0]
        draft.choose(group, choice)
    target = draft.chosen(group)
    assert target is not None
    return group, target


PLAUSIBLE: dict[str, tuple[Callable[[Draft], None], float]] = {
    "choose": (choose, 3),
    "add_model": (add_model, 2),
    "add_file": (add_file, 1),
    "set_cluster": (set_cluster, 5),
    "add_optimizer": (add_optimizer, 2),
    "add_schedule": (add_schedule, 2),
    "set_field": (set_field, 6),
    "set_leaf": (set_leaf, 4),
    "sweep": (sweep, 0.7),
}
"""The changes that a user might make, each with its weight, in the order in which they are made: keys after choices."""
