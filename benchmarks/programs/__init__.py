"""Programs that people run, at real proportions: one readable file each.

A file has ``build(scale)``, which returns a function, its arguments as shapes, and what ``sw.partition`` is told beside
them. Scales: "real", the published size on as many chips as it takes; "middle", the same with fewer layers, experts or
rows, so that compiling takes minutes at most; "small", which runs on 8 CPU devices in seconds. Programs with shardings
of their own also have ``specs()``: where their author puts the arguments.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Program:
    """Where a program is, what it is, the target that "middle" is compiled for, and whether it has own shardings."""

    name: str
    title: str
    target: str = "tpu:v5e:4x4"
    sharded: bool = False

    @property
    def module(self) -> ModuleType:
        """The program's file."""
        return importlib.import_module(f"benchmarks.programs.{self.name}")


_ALL = (
    Program("constraints_p", "Llama 3 8B, P under a mesh", sharded=True),
    Program("constraints_named", "Llama 3 8B, NamedSharding", sharded=True),
    Program("constraints_logical", "Llama 3 8B, logical constraints", sharded=True),
    Program("jitted", "Llama 3 8B, jitted with shardings", sharded=True),
    Program("explicit", "Llama 3 8B, explicit mode", sharded=True),
    Program("attention_in_shard_map", "Llama 3 8B, attention in shard_map", sharded=True),
    Program("step_in_shard_map", "Llama 3.2 1B, step in shard_map", sharded=True),
    Program("partly_manual", "Llama 3 8B, manual over data", sharded=True),
    Program("deepseek", "DeepSeek-V3 671B"),
    Program("embeddings", "DLRM-DCNv2, stacked tables"),
    Program("dropless", "Mixtral 8×7B, dropless"),
    Program("rglru", "RecurrentGemma 9B"),
    Program("lora", "Llama 3 70B, LoRA"),
    Program("muon", "Llama 3 8B, Muon"),
    Program("paged_decode", "Llama 3 70B, paged decode", target="tpu:v6e:4x4"),
    Program("grpo", "Llama 3 8B, GRPO"),
    Program("dit", "DiT-XL/2"),
    Program("conformer", "Conformer (L)"),
)
PROGRAMS: dict[str, Program] = {program.name: program for program in _ALL}
