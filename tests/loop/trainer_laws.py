"""transformers' Trainer with a Team: what it trains and refuses. Each function runs in the ranks of a world, where the package is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from loops import caught
from numpy.typing import NDArray
from ranks import found_by
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, IterableDataset
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.utils import ModelOutput

from hetsim import Balanced
from hetsim.policies.allocation import Fixed

SAMPLES, BATCH_SIZE = 60, 12
UNEVEN = Fixed(parts=[1, 2])
OPTIONS = {"n_positions": 12, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
DROPOUTS = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}


class OwnLoss:
    """With a loss that is a mean over the rank's samples."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        """The mean of each sample's own mean."""
        outputs = model(input_ids=inputs["input_ids"])
        loss = cross_entropy(outputs.logits.transpose(1, 2), inputs["labels"].clamp(min=0), reduction="none").mean()
        return (loss, outputs) if return_outputs else loss


class Scaled:
    """With a loss that says that it is divided by the number of batches of a step."""

    loss_is_scaled_for_ga = True


class Texts(Dataset[Any]):
    """Of twelve tokens each, of which some have no loss."""

    def __init__(self, num_samples: int = SAMPLES) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> Any:
        if index >= self.num_samples:
            raise IndexError(index)
        tokens = torch.randint(0, 20, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens.where(torch.arange(12) < 2 + index % 10, -100)}


class Classes(Texts):
    """With one label each."""

    def __getitem__(self, index: int) -> Any:
        return {"input_ids": super().__getitem__(index)["input_ids"], "labels": index % 3}


class Targets(Texts):
    """With one number each."""

    def __getitem__(self, index: int) -> Any:
        return {"input_ids": super().__getitem__(index)["input_ids"], "labels": float(index % 3)}


class Endless(IterableDataset[Any]):
    """Without an order that a Team could divide."""

    def __iter__(self) -> Any:
        return iter(Texts())


def texts_model(kind: type[GPT2LMHeadModel] = GPT2LMHeadModel) -> Any:
    """The same one in each process, in double precision."""
    torch.manual_seed(0)
    return kind(GPT2Config(vocab_size=20, **OPTIONS, **DROPOUTS)).double()


def classes_model(*, num_labels: int = 3, accepts_loss_kwargs: bool | None = None) -> Any:
    """A classifier, or for one label a regression."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    off = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    model = BertForSequenceClassification(BertConfig(**sizes, **off, num_labels=num_labels)).double()
    if accepts_loss_kwargs is not None:
        model.accepts_loss_kwargs = accepts_loss_kwargs
    return model


class Balancing(GPT2LMHeadModel):
    """With a second loss that is a mean over the rank's own tokens, as a router's is."""

    def forward(self, input_ids: Any = None, labels: Any = None, **options: Any) -> Any:
        """The outputs, with both losses."""
        outputs = super().forward(input_ids=input_ids, labels=labels, **options)
        outputs.loss = outputs.loss + 0.1 * outputs.logits.pow(2).mean()
        return outputs


def mean_of_tokens(outputs: Any, labels: Any, **_: Any) -> Any:
    """The mean over the rank's own tokens."""
    return cross_entropy(outputs.logits.transpose(1, 2), labels)


def divided(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """The sum over the tokens, divided by those of all ranks."""
    return cross_entropy(outputs.logits.transpose(1, 2), labels, reduction="sum") / num_items_in_batch


class Tokenwise(nn.Module):
    """A model that predicts from one token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20)).double()

    def forward(self, input_ids: Any, labels: Any = None, num_items_in_batch: Any = None, **_: Any) -> Any:
        logits = self.layers(input_ids)
        if labels is None:
            return ModelOutput(logits=logits)
        loss = cross_entropy(logits.transpose(1, 2), labels, reduction="sum") / num_items_in_batch
        return ModelOutput(loss=loss, logits=logits)


def packed(samples: Any) -> Any:
    """One long row of all samples."""
    return {name: torch.cat([sample[name] for sample in samples])[None] for name in ("input_ids", "labels")}


PLAIN = {"train_sampling_strategy": "sequential", "optim": "sgd", "learning_rate": 0.5, "save_strategy": "no", "report_to": "none"}
QUIET = {"disable_tqdm": True, "use_cpu": True, "ddp_find_unused_parameters": False, "logging_strategy": "no"}
MEANS: dict[str, Any] = {"model": lambda: classes_model(accepts_loss_kwargs=False), "train_dataset": Classes()}
CASES: dict[str, dict[str, Any]] = {
    "tokens": {},
    "tokens of an accumulation over two batches": {"args": {"gradient_accumulation_steps": 2}},
    "tokens of an accumulation over more batches than a rank has samples": {
        "args": {"gradient_accumulation_steps": 6},
        "train_dataset": Texts(6 * BATCH_SIZE + 8),
    },
    "tokens with label smoothing": {"args": {"label_smoothing_factor": 0.1}},
    "tokens with evaluations between steps": {"args": {"eval_strategy": "steps", "eval_steps": 2}, "eval_dataset": Texts(7)},
    "tokens with a short last step": {"train_dataset": Texts(SAMPLES - 5)},
    "tokens with a last step of two samples": {"train_dataset": Texts(SAMPLES + 2)},
    "tokens with loader workers": {"args": {"dataloader_num_workers": 1, "dataloader_multiprocessing_context": "fork"}},
    "tokens of a batch that has no halves": {"model": Tokenwise, "data_collator": packed},
    "a compute_loss_func": {"compute_loss_func": divided},
    "a loader that the script has looked at": {"looks": True},
    "a second run": {"runs": 2},
    "a mean over samples": MEANS,
    "an accumulation of means over samples": MEANS | {"args": {"gradient_accumulation_steps": 2}},
    "a mean over samples with a last step of two samples": MEANS | {"train_dataset": Classes(SAMPLES + 2)},
    "regression": {"model": lambda: classes_model(num_labels=1, accepts_loss_kwargs=False), "train_dataset": Targets()},
    "a compute_loss of its own": {"bases": (OwnLoss,), "plain_loss": True},
    "a mean that only the user knows": {
        "bases": (OwnLoss,),
        "plain_loss": True,
        "model": Tokenwise,
        "data_collator": packed,
        "verified": True,
    },
}
"""What trains as in one process with shares of 1 : 2."""
EVEN: dict[str, dict[str, Any]] = {
    "a loss that ignores num_items_in_batch": {"model": classes_model, "train_dataset": Classes()},
    "a loss that ignores num_items_in_batch in a part": {"model": lambda: texts_model(Balancing)},
    "a compute_loss_func that ignores it": {"compute_loss_func": mean_of_tokens},
    "a compute_loss of its own that ignores it": {"bases": (OwnLoss,)},
    "a mean that may be divided by more": {
        **MEANS,
        "bases": (Scaled,),
        "args": {"gradient_accumulation_steps": 2},
        "train_dataset": Classes(4 * BATCH_SIZE),
    },
    "means over a rank's tokens": {"args": {"average_tokens_across_devices": False}},
    "means over the tokens of a model without num_items_in_batch": {"plain_loss": True},
}
"""Losses that train as a plain Trainer does, with even shares and a remark, or not at all with others."""
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "samples by length": ({"args": {"train_sampling_strategy": "group_by_length"}}, "and not by LengthGroupedSampler"),
    "no dataset with indices": ({"train_dataset": Endless(), "args": {"max_steps": 2}}, "a Team divides no IterableDataset of the Trainer"),
    "batches that change by themselves": ({"args": {"auto_find_batch_size": True}}, "auto_find_batch_size would change"),
}


def trainer(folder: Path, case: dict[str, Any], allocation: Any = None, **args: Any) -> Any:
    """The Trainer of a case: a plain one, or with an allocation a balanced one."""
    model = case.get("model", texts_model)()
    if case.get("plain_loss"):
        model.accepts_loss_kwargs = False
    args = PLAIN | QUIET | {"num_train_epochs": 2} | case.get("args", {}) | args
    options = {name: case[name] for name in ("eval_dataset", "compute_loss_func", "data_collator") if name in case}
    bases = case.get("bases", ())
    if allocation is not None:
        bases = (Balanced, *bases)
        options |= {"allocation": allocation, "verified": case.get("verified", False)}
    return type("BalancedTrainer", (*bases, Trainer), {})(
        model=model,
        args=TrainingArguments(str(folder), per_device_train_batch_size=BATCH_SIZE // dist.get_world_size(), **args),
        train_dataset=case.get("train_dataset", Texts()),
        **options,
    )


def joined(rank: int) -> None:
    """What Accelerate reads of a launcher."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(dist.get_world_size()), LOCAL_WORLD_SIZE=str(dist.get_world_size())
    )
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")  # there is a process group already


def weights(model: Any) -> NDArray[np.float64]:
    """Of a trained model, all in one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).numpy()


def run(rank: int, folder: Path, names: Sequence[str], unknown: Sequence[str]) -> dict[str, Any]:
    """What each law finds: for these losses, and for losses that are unknown."""
    joined(rank)
    laws = {"trained": partial(trained, names), "even": partial(even, unknown), "resumed": resumed, "refused": refused}
    return found_by({name: partial(law, folder / name) for name, law in laws.items()})


def trained(names: Sequence[str], folder: Path) -> dict[str, NDArray[np.float64]]:
    """The weights after two epochs of each case: with shares of 1 : 2, or in one process."""
    found = {}
    for name in names:
        case = CASES[name]
        made = trainer(folder, case, UNEVEN if dist.get_world_size() > 1 else None)
        if case.get("looks"):
            assert len(made.get_train_dataloader()) == SAMPLES // BATCH_SIZE
        for _ in range(case.get("runs", 1)):
            made.train()
        found[name] = weights(made.model)
    return found


def serial(rank: int, folder: Path, names: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """The same in one process."""
    joined(rank)
    return trained(names, folder)


def even(names: Sequence[str], folder: Path) -> dict[str, tuple[float, str, str]]:
    """How far a balanced Trainer is from a plain one on the same ranks, its remark, and the error with shares of 1 : 2."""
    found = {}
    for name in names:
        case = EVEN[name]
        plain, made = trainer(folder, case), trainer(folder, case, "dbs")
        plain.train()
        remark = caught(made.train)
        error = caught(trainer(folder, case, UNEVEN).train)
        found[name] = float(np.abs(weights(plain.model) - weights(made.model)).max()), remark, error
    return found


def resumed(folder: Path) -> tuple[float, list[list[int]], list[list[float]]]:
    """How far a run that resumes in the middle of an epoch is from one without a pause; the samples and the logged epochs of each."""
    ends, seen, epochs = [], [], []
    args = {"train_sampling_strategy": "random", "save_strategy": "steps", "save_steps": 3, "logging_strategy": "steps", "logging_steps": 1}
    for resume in (None, str(folder / "checkpoint-3")):
        made = trainer(folder, {}, UNEVEN, **args)
        inner, samples = made.training_step, list[int]()

        def recorded(model: Any, inputs: Any, count: Any = None, inner: Any = inner, samples: list[int] = samples) -> Any:
            samples.extend(map(hash, map(str, inputs["input_ids"].tolist())))
            return inner(model, inputs, count)

        made.training_step = recorded
        made.train(resume_from_checkpoint=resume)
        ends.append(weights(made.model))
        seen.append(samples)
        epochs.append([entry["epoch"] for entry in made.state.log_history if "loss" in entry])
    return float(np.abs(ends[0] - ends[1]).max()), seen, epochs


def refused(folder: Path) -> dict[str, str]:
    """The error of each case."""
    found = {name: caught(lambda case=case: trainer(folder, case, UNEVEN).train()) for name, (case, _) in REFUSED.items()}
    trainer(folder, {}, UNEVEN, max_steps=2, save_strategy="steps", save_steps=2).train()
    saved = folder / "checkpoint-2"
    other_steps = trainer(folder, {}, UNEVEN, gradient_accumulation_steps=2)
    found["other steps"] = caught(lambda: other_steps.train(resume_from_checkpoint=str(saved)))
    state = saved / "trainer_state.json"
    dist.barrier()
    if dist.get_rank() == 0:
        state.write_text(state.read_text(encoding="utf-8").replace("hetsim.Team", "another"), encoding="utf-8")
    dist.barrier()
    found["another Trainer's"] = caught(lambda: trainer(folder, {}, UNEVEN).train(resume_from_checkpoint=str(saved)))
    return found
