"""Models, optimizers and learning-rate schedules, with the options that their own signatures have."""

from __future__ import annotations

import inspect
import io
from functools import cache
from typing import Any

import known_keys
import numpy as np
from drawn_draft import Draft
from drawn_values import NUMBERS, SIZES, annotated, hostile, text

ARRAYS = "arrays.npz"


def add_optimizer(draft: Draft, *, wrong: float = 0.0) -> None:
    """Any of torch's optimizers, for the versions or for local steps, with some of its options."""
    rng = draft.rng
    group = "local_optimizer" if draft.choices.get("local_optimizer", "none") != "none" and rng.random() < 0.5 else "optimizer"
    target = rng.choice(known_keys.subclasses("torch.optim", "Optimizer"))
    draft.words += [f"~{group}", f"+{group}={_entry(draft, target, wrong)}"] if rng.random() < 0.9 else [f"{group}._target_={target}"]


def add_schedule(draft: Draft, *, wrong: float = 0.0) -> None:
    """Any of torch's learning-rate schedules, also one that is made of others."""
    rng = draft.rng
    local = draft.choices.get("local_optimizer", "none") != "none" and rng.random() < 0.5
    target = rng.choice(known_keys.subclasses("torch.optim.lr_scheduler", "LRScheduler"))
    draft.words.append(f"{'local_' if local else ''}learning_rate_schedule={_entry(draft, target, wrong)}")


def spoil_torch(draft: Draft) -> None:
    """An optimizer, a schedule or a model with hostile options."""
    draft.rng.choice((add_optimizer, add_schedule, add_model))(draft, wrong=0.5)


def _entry(draft: Draft, target: str, wrong: float, *, depth: int = 0) -> str:
    """The text of a mapping for a class of torch: its required options and some others."""
    rng = draft.rng
    module, _, name = target.rpartition(".")
    parameters = inspect.signature(vars(__import__(module, fromlist=[name]))[name]).parameters
    options: dict[str, str] = {"_target_": target}
    for option, parameter in parameters.items():
        if option in ("params", "optimizer") or (parameter.default is not parameter.empty and rng.random() < 0.8):
            continue
        if option == "schedulers" and depth < 2:
            parts = rng.choices(known_keys.subclasses("torch.optim.lr_scheduler", "LRScheduler"), k=rng.randint(0, 2))
            options[option] = "[" + ", ".join(_entry(draft, part, wrong, depth=depth + 1) for part in parts) + "]"
        elif rng.random() < wrong:
            options[option] = hostile(rng)
        else:
            options[option] = text(_plausible(draft, option, str(parameter.annotation), parameter.default))
    return "{" + ", ".join(f"{key}: {value}" for key, value in options.items()) + "}"


def _plausible(draft: Draft, option: str, annotation: str, default: Any) -> Any:
    rng = draft.rng
    if "tuple" in annotation and isinstance(default, tuple):
        return [rng.choice(NUMBERS) for _ in default]
    if "list" in annotation or "Iterable" in annotation or "Sequence" in annotation:
        return sorted(rng.choice(SIZES) for _ in range(rng.randint(0, 2)))
    return annotated(rng, annotation, option)


def add_model(draft: Draft, *, wrong: float = 0.0) -> None:
    """A model of hetsim's own, or a small one of torchvision, with options; on digits or on arrays of the fuzzer's own."""
    rng = draft.rng
    draft.choose("workload", rng.choice(("digits", "arrays")))
    if draft.choices["workload"] == "arrays":
        draft.files[ARRAYS] = _arrays(draft, wrong)
        draft.words.append(f"++workload.path={ARRAYS}")
    name = rng.choice((*_options(), *_options(), "squeezenet1_1", "shufflenet_v2_x0_5"))
    plausible = {"hidden": ([8], [4, 4], []), "dropout": (0, 0.5, 0.9), "width": (2, 4)}
    known = _options().get(name, ("num_classes", "weights", "progress", "dropout", "nothing") if wrong else ())
    given = {
        option: hostile(rng) if option not in plausible or rng.random() < wrong else text(rng.choice(plausible[option]))
        for option in known
        if rng.random() < 0.4
    }
    draft.words.append(f"++workload.model={name}")
    if given:
        draft.words.append("++workload.model_options={" + ", ".join(f"{option}: {value}" for option, value in given.items()) + "}")
    for key, values in (("resize", (4, 12, 32)), ("augmentation", ({"pad": 1}, {"mirror": True}, {"pad": 2, "mirror": True}, {}))):
        if rng.random() < 0.4:
            draft.words.append(f"++workload.{key}={hostile(rng) if rng.random() < wrong else text(rng.choice(values))}")


@cache
def _options() -> dict[str, tuple[str, ...]]:
    """Each of hetsim's own models with the names of its options."""
    from hetsim.workloads.models.registry import OWN

    return {name: tuple(inspect.signature(model).parameters)[2:] for name, model in OWN.items()}


def _arrays(draft: Draft, wrong: float) -> bytes:
    """A file of arrays, right or wrong in one place."""
    rng = draft.rng
    shape = rng.choice(((6,), (1, 8, 8), (3, 8, 8), (3, 32, 32), *(((2, 3), ()) if wrong else ())))
    dtype: Any = rng.choice((np.float32, np.uint8, np.float64, *((np.int64, bool, complex, str, object) if wrong else ())))
    arrays: dict[str, Any] = {
        f"x_{part}": np.ones((rng.choice((20, 50, 1 if wrong else 30)), *shape)).astype(dtype) for part in ("train", "test")
    }
    arrays |= {f"y_{part}": np.arange(len(arrays[f"x_{part}"])) % 3 for part in ("train", "test")}
    if rng.random() < wrong:
        name = rng.choice(list(arrays))
        spoilt = (
            np.empty(0),
            np.array(1),
            -arrays["y_train"],
            arrays["y_train"] + 10**7,
            np.full((20, 6), np.nan),
            arrays["y_train"] / 2,
            None,
        )
        if (other := rng.choice(spoilt)) is None:
            del arrays[name]
        else:
            arrays[name] = other
    file = io.BytesIO()
    np.savez(file, **arrays)
    content = file.getvalue()
    return content if rng.random() > wrong / 5 else content[: rng.randrange(len(content))]
