"""transformers' Trainer with a Team: what it trains and refuses. Each function runs in the ranks of a world, where the package is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, IterableDataset
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from hetsim.ddp.trainer import Balanced
from hetsim.policies.allocation import Fixed

SAMPLES, BATCH_SIZE = 60, 12
OPTIONS = {"n_positions": 12, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
DROPOUTS = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}


class OwnLoss:
    """With a loss that is a mean over the rank's samples."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        """The mean of each sample's own mean."""
        outputs = model(input_ids=inputs["input_ids"])
        loss = cross_entropy(outputs.logits.transpose(1, 2), inputs["labels"].clamp(min=0), reduction="none").mean()
        return (loss, outputs) if return_outputs else loss


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


def texts_model() -> Any:
    """The same one in each process, in double precision."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=20, **OPTIONS, **DROPOUTS)).double()


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


def mean_of_tokens(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """The mean over the rank's own tokens."""
    return cross_entropy(outputs.logits.transpose(1, 2), labels)


def divided(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """The sum over the tokens, divided by those of all ranks."""
    return cross_entropy(outputs.logits.transpose(1, 2), labels, reduction="sum") / num_items_in_batch


PLAIN = {"train_sampling_strategy": "sequential", "optim": "sgd", "learning_rate": 0.5, "save_strategy": "no", "report_to": "none"}
QUIET = {"disable_tqdm": True, "use_cpu": True, "ddp_find_unused_parameters": False, "logging_strategy": "no"}
CASES: dict[str, dict[str, Any]] = {
    "tokens": {},
    "tokens of an accumulation over two batches": {"args": {"gradient_accumulation_steps": 2}, "train_dataset": Texts(4 * BATCH_SIZE)},
    "tokens with label smoothing": {"args": {"label_smoothing_factor": 0.1}},
    "tokens with evaluations between steps": {"args": {"eval_strategy": "steps", "eval_steps": 2}, "eval_dataset": Texts(7)},
    "tokens with a short last step": {"train_dataset": Texts(SAMPLES - 5)},
    "tokens with loader workers": {"args": {"dataloader_num_workers": 1, "dataloader_multiprocessing_context": "fork"}},
    "a compute_loss_func": {"compute_loss_func": divided},
    "tokens of a loader that the script has looked at": {"looks": True},
    "a mean over samples": {"model": lambda: classes_model(accepts_loss_kwargs=False), "train_dataset": Classes()},
    "an accumulation of means over samples": {
        "model": lambda: classes_model(accepts_loss_kwargs=False),
        "train_dataset": Classes(4 * BATCH_SIZE),
        "args": {"gradient_accumulation_steps": 2},
    },
    "a mean over samples with a step of one sample": {
        "model": lambda: classes_model(accepts_loss_kwargs=False),
        "train_dataset": Classes(SAMPLES + 1),
    },
    "regression": {"model": lambda: classes_model(num_labels=1, accepts_loss_kwargs=False), "train_dataset": Targets()},
    "a compute_loss of its own": {"bases": (OwnLoss,), "loss": "mean"},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a compute_loss of its own": ({"bases": (OwnLoss,)}, "OwnLoss has a compute_loss of its own: pass loss='global'"),
    "a loss of neither kind": ({"loss": "sum"}, "loss must be mean or global, not 'sum'"),
    "a loss that ignores num_items_in_batch": (
        {"model": classes_model, "train_dataset": Classes()},
        "set model.accepts_loss_kwargs = False",
    ),
    "a compute_loss_func that ignores it": ({"compute_loss_func": mean_of_tokens}, "divide what compute_loss_func returns by"),
    "a second loss that ignores it": (
        {"model": lambda: Balancing(GPT2Config(vocab_size=20, **OPTIONS, **DROPOUTS)).double()},
        "leave the other part out, or pass loss='global'",
    ),
    "means over tokens": ({"args": {"average_tokens_across_devices": False}}, "set average_tokens_across_devices=True"),
    "means over the tokens of a model without num_items_in_batch": ({"plain_loss": True}, "give the Trainer a compute_loss_func"),
    "a last step of one sample": ({"train_dataset": Texts(SAMPLES + 1)}, "set dataloader_drop_last=True"),
    "samples by length": ({"args": {"train_sampling_strategy": "group_by_length"}}, "and not by LengthGroupedSampler"),
    "no dataset with indices": ({"train_dataset": Endless(), "args": {"max_steps": 2}}, "an IterableDataset has its own order"),
    "batches that change by themselves": ({"args": {"auto_find_batch_size": True}}, "auto_find_batch_size would change"),
    "a second run": ({"runs": 2}, "the Team of this Trainer has drawn batches already"),
}


def trainer(folder: Path, case: dict[str, Any], **more: Any) -> Any:
    """The Trainer of a case: of the whole batch in one process, and else of unequal shares of it."""
    size = dist.get_world_size()
    model = case.get("model", texts_model)()
    if case.get("plain_loss"):
        model.accepts_loss_kwargs = False
    args = PLAIN | QUIET | {"num_train_epochs": 2} | case.get("args", {}) | more.pop("args", {})
    options = {name: case[name] for name in ("eval_dataset", "compute_loss_func") if name in case} | more
    balanced: tuple[type, ...] = ()
    if size > 1:
        balanced, options = (Balanced,), options | {"allocation": Fixed(parts=[1, 2]), "loss": case.get("loss")}
    return type("BalancedTrainer", (*case.get("bases", ()), *balanced, Trainer), {})(
        model=model,
        args=TrainingArguments(str(folder), per_device_train_batch_size=BATCH_SIZE // size, **args),
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


def trained(rank: int, folder: Path) -> dict[str, NDArray[np.float64]]:
    """The weights after two epochs of each case."""
    joined(rank)
    found = {}
    for name, case in CASES.items():
        its = trainer(folder, case)
        if case.get("looks"):
            assert len(its.get_train_dataloader()) == SAMPLES // BATCH_SIZE
        its.train()
        found[name] = weights(its.model)
        if dist.get_world_size() > 1:
            assert its.team.shares in ((4, 8), (1, 0), (0, 1), (2, 5), (3, 4)), its.team.shares
    return found


def resumed(rank: int, folder: Path) -> tuple[float, list[list[int]], list[list[float]]]:
    """How far a run that resumes in the middle of an epoch is from one without a pause; the samples and the logged epochs of each."""
    joined(rank)
    ends, seen, epochs = [], [], []
    args = {"train_sampling_strategy": "random", "save_strategy": "steps", "save_steps": 3, "logging_strategy": "steps", "logging_steps": 1}
    case = {"train_dataset": Texts(), "args": args}
    for steps, resume in ((-1, None), (-1, str(folder / "checkpoint-3"))):
        its = trainer(folder, case, args={"max_steps": steps})
        inner, samples = its.training_step, []

        def recorded(model: Any, inputs: Any, count: Any = None, inner: Any = inner, samples: list[int] = samples) -> Any:
            samples.extend(map(hash, map(str, inputs["input_ids"].tolist())))
            return inner(model, inputs, count)

        its.training_step = recorded
        its.train(resume_from_checkpoint=resume)
        ends.append(weights(its.model))
        seen.append(samples)
        epochs.append([entry["epoch"] for entry in its.state.log_history if "loss" in entry])
    return float(np.abs(ends[0] - ends[1]).max()), seen, epochs


def refused(rank: int, folder: Path) -> dict[str, str]:
    """The error of each case."""
    joined(rank)
    found = {}
    for name, (case, _) in REFUSED.items():
        try:
            its = trainer(folder, case)
            for _ in range(case.get("runs", 1)):
                its.train()
            found[name] = "nothing"
        except ValueError as error:
            found[name] = str(error)
    trainer(folder, {"args": {"max_steps": 2, "save_strategy": "steps", "save_steps": 2}}).train()
    try:
        trainer(folder, {"args": {"gradient_accumulation_steps": 2}}).train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    except ValueError as error:
        found["other steps"] = str(error)
    state = folder / "checkpoint-2" / "trainer_state.json"
    dist.barrier()
    if rank == 0:
        state.write_text(state.read_text(encoding="utf-8").replace("hetsim.ddp.Team", "another"), encoding="utf-8")
    dist.barrier()
    try:
        trainer(folder, {}).train(resume_from_checkpoint=str(state.parent))
    except ValueError as error:
        found["resume"] = str(error)
    return found
