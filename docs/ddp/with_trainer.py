"""A Team in Hugging Face's Trainer: torchrun --nproc-per-node 3 docs/ddp/with_trainer.py FOLDER."""

import sys

import torch
from torch.utils import data
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from hetsim import Balanced


class BalancedTrainer(Balanced, Trainer):
    pass


class Texts(data.Dataset):
    """Sentences of different lengths, in which each token is the one before plus one."""

    def __len__(self):
        return 3000

    def __getitem__(self, index):
        tokens = (index + torch.arange(16)) % 50
        return {"input_ids": tokens, "labels": tokens.where(torch.arange(16) < 4 + index % 13, -100)}


def main(folder, *more):
    torch.manual_seed(0)
    small = {"vocab_size": 50, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(**small, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    args = TrainingArguments(
        folder,
        per_device_train_batch_size=100,  # of each rank on average: a step has 100 samples times the number of ranks
        per_device_eval_batch_size=100,
        num_train_epochs=2,
        learning_rate=0.01,
        eval_strategy="epoch",
        save_strategy="epoch",
        report_to="none",
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = BalancedTrainer(
        model=model,
        args=args,
        train_dataset=Texts(),
        eval_dataset=data.Subset(Texts(), range(300)),
        allocation="dbs",
    )
    trainer.train(resume_from_checkpoint="--resume" in more)


if __name__ == "__main__":
    main(*sys.argv[1:])
