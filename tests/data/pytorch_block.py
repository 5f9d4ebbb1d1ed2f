"""Writes pytorch_block.mlir and pytorch_block.npz: a PyTorch training step, and what PyTorch itself makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
import torchax.export
from torch import nn

BATCH, LENGTH, VOCABULARY, WIDTH, HEADS, HIDDEN = 8, 8, 32, 16, 4, 32
RATE = 0.1


class Block(nn.Module):
    """An embedding, one transformer block, and the logits of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits for every position."""
        x = self.embedding(tokens)
        q, k, v = (
            part.reshape(*part.shape[:2], HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, dim=-1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return self.head(x + self.mlp(x))


class Loss(nn.Module):
    """What is minimised."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean cross entropy of the targets."""
        return nn.functional.cross_entropy(self.block(tokens).flatten(0, 1), targets.flatten())


def short(name: str) -> str:
    """A parameter's name in the block."""
    return name.removeprefix("block.")


def main() -> None:
    """Export the step by torchax, take the same step by PyTorch's own autograd, and write both down."""
    jax.config.update("jax_enable_x64", True)  # PyTorch's tokens have 64 bits
    jax.config.update("jax_traceback_in_locations_limit", 0)
    torch.manual_seed(0)
    model = Loss()
    tokens, targets = torch.randint(VOCABULARY, (2, BATCH, LENGTH))
    program = torch.export.export(model, (tokens, targets))
    _, loss_of = torchax.export.exported_program_to_jax(program)
    names = [short(name) for name in program.graph_signature.parameters]

    def train_step(params: Any, tokens: Any, targets: Any) -> Any:
        def loss(params: Any) -> Any:
            return loss_of([params[name] for name in names], (tokens, targets))[0]

        value, gradients = jax.value_and_grad(loss)(params)
        return value, jax.tree.map(lambda p, g: p - RATE * g, params, gradients)

    params = {short(name): p.detach().numpy().copy() for name, p in model.named_parameters()}
    lowered = jax.jit(train_step, donate_argnums=0).lower(params, tokens.numpy(), targets.numpy())
    here = Path(__file__)
    here.with_suffix(".mlir").write_text(lowered.as_text(debug_info=True))

    loss = model(tokens, targets)
    loss.backward()
    after = {short(name): (p - RATE * p.grad).detach().numpy() for name, p in model.named_parameters()}
    arrays = {"loss": loss.detach().numpy(), "tokens": tokens.numpy(), "targets": targets.numpy()}
    arrays |= {f"before.{name}": a for name, a in params.items()} | {f"after.{name}": a for name, a in after.items()}
    np.savez_compressed(here.with_suffix(".npz"), **arrays)


if __name__ == "__main__":
    main()
