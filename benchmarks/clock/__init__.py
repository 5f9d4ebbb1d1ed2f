"""How far the estimate's seconds and bytes are from the compiler's, on programs that nothing was fitted to.

The *subjects* are of two kinds. Those that the model was developed on are the built-in models; those that it is judged
by are models that others wrote, with fewer layers so that a compilation takes a minute, and `benchmarks/programs/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DEVELOPED, JUDGED = "developed on", "judged by"


@dataclass(frozen=True)
class Subject:
    """A program: where it is built, with which sizes, in which environment (that of this process if it has none)."""

    name: str
    where: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    environment: str = ""
    kind: str = JUDGED


FOUR = {"layers": 4}
_OTHERS = (
    Subject("GPT-2, transformers", "flax_transformers:gpt2_xl", FOUR, "transformers-4.48"),
    Subject("BERT, transformers", "flax_transformers:bert_large", FOUR, "transformers-4.48"),
    Subject("ViT-H, transformers", "flax_transformers:vit_huge", FOUR, "transformers-4.48"),
    Subject("Gemma 2B, transformers", "flax_transformers:gemma_2b", {"layers": 3}, "transformers-4.48"),
    Subject("Llama 3.2 1B, tunix", "tunix_models:llama_3_1b", {"layers": 3}, "tunix"),
    Subject("Qwen 3 8B forward, tunix", "tunix_models:qwen_3_8b", {"layers": 3}, "tunix"),
    Subject("Llama 7B, levanter", "levanter_models:llama_7b", FOUR, "levanter"),
    Subject("DINOv2 ViT-g, equimo", "equimo_models:dino_giant", FOUR, "equimo"),
    Subject("PPO, brax", "brax_agents:ppo", {}, "small"),
    Subject("Graph network, jraph", "jraph_nets:molecules", {}, "small"),
)
_PROGRAMS = tuple(
    Subject(title, f"programs:{name}")
    for name, title in {
        "lora": "Llama, LoRA",
        "muon": "Llama, Muon",
        "grpo": "Llama, GRPO",
        "rglru": "RecurrentGemma",
        "deepseek": "DeepSeek-V3",
        "dit": "DiT-XL/2",
        "conformer": "Conformer",
        "embeddings": "DLRM-DCNv2",
    }.items()
)
_BUILT_IN = tuple(
    Subject(name, f"models:{model}", sizes, kind=DEVELOPED)
    for name, model, sizes in (
        ("gpt", "gpt", {"layers": 4}),
        ("mlp", "mlp", {}),
        ("vit", "vit", {"layers": 4}),
        ("itx", "itx", {"layers": 8}),
        ("moe", "moe", {"layers": 2}),
        ("gns", "gns", {"steps": 2}),
        ("unet", "unet", {"levels": 2, "attention_levels": 1, "blocks": 1, "width": 128, "batch": 128}),
    )
)
SUBJECTS: dict[str, Subject] = {subject.name: subject for subject in (*_OTHERS, *_PROGRAMS, *_BUILT_IN)}
TARGET, DEVICE, MESH = "tpu:v5e:4x4", "tpu-v5e", {"data": 4, "model": 4}
OURS = "ours"
PLANS: dict[str, tuple[str, ...] | int] = {
    OURS: (),
    "fsdp": ("fsdp:data", "fsdp:model"),
    "data parallel + megatron": ("data_parallel:data", "megatron:model"),
    "fsdp + megatron": ("fsdp:data", "megatron:model"),
    "data parallel": ("data_parallel:data", "data_parallel:model"),
    "fsdp + sequence": ("fsdp:data", "megatron_sequence:model"),
    "random 0": 0,
    "random 1": 1,
}
"""Tactics, or the seed of random decisions."""
