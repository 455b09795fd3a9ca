"""A decoder-only transformer for short sequences."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Causal attention and a feed-forward layer of four times the width, each after a layer norm and with a shortcut.

    Queries, keys and values have separate matrices, because some optimizers treat each matrix by itself.
    """

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries, self.keys, self.values, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self._attention(self.before_attention(x))
        after: torch.Tensor = x + self.mlp(self.before_mlp(x))
        return after

    def _attention(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in (self.queries, self.keys, self.values))
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        later = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
        mixed: torch.Tensor = self.out((scores.masked_fill(later, -torch.inf).softmax(-1) @ v).transpose(1, 2).flatten(-2))
        return mixed


class Transformer(nn.Module):
    """Logits of the next token at each position (Vaswani et al. 2017, arXiv 1706.03762; layer norms first, as in GPT-2)."""

    def __init__(self, *, vocabulary: int, context_length: int, width: int, num_layers: int, num_heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context_length, width)
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[-1]]
        logits: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def loss(logits: torch.Tensor, following: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """The cross entropy of the next tokens, in nats per token."""
    return functional.cross_entropy(logits.flatten(0, -2), following.flatten(), reduction=reduction)
