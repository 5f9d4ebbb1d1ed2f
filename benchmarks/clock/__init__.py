"""How far the estimate's seconds and bytes are from the compiler's, and which plans it takes for the best.

The *subjects* are of two kinds. The model was developed on the built-in models and on some that others wrote: their
compiled programs were looked at, and rules were found there. It is judged by the others, which nobody looked into. All
have fewer layers than published, so that a compilation takes a minute.
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
    target: str = "tpu:v5e:4x4"

    @property
    def device(self) -> str:
        """The preset of the target's devices."""
        return f"tpu-{self.target.split(':')[1]}"


TWO, FOUR = {"layers": 2}, {"layers": 4}
_JUDGED = (
    Subject("ViT-H, transformers", "flax_transformers:vit_huge", TWO, "transformers-4.48"),
    Subject("CLIP, transformers", "flax_transformers:clip_large", {"layers": 2, "batch": 256}, "transformers-4.48"),
    Subject("Whisper forward, transformers", "flax_transformers:whisper_large", TWO, "transformers-4.48"),
    Subject("Llama 3.2 1B, tunix", "tunix_models:llama_3_1b", TWO, "tunix"),
    Subject("Qwen 3 8B forward, tunix", "tunix_models:qwen_3_8b", TWO, "tunix"),
    Subject("Llama 7B, levanter", "levanter_models:llama_7b", FOUR, "levanter"),
    Subject("DINOv2 ViT-g, equimo", "equimo_models:dino_giant", TWO, "equimo"),
    Subject("T5 forward, keras-hub", "keras_models:t5_large", TWO, "keras"),
    Subject("Mixtral forward, keras-hub", "keras_models:mixtral", TWO, "keras"),
    Subject("ResNet-50, haiku", "haiku_nets:resnet_50", {}, "small"),
    Subject("PPO, brax", "brax_agents:ppo", {}, "small"),
    Subject("Llama, Muon", "programs:muon"),
    Subject("RecurrentGemma", "programs:rglru"),
    Subject("DLRM-DCNv2", "programs:embeddings"),
    Subject("Mixtral, dropless", "programs:dropless"),
)
_SEEN = (
    Subject("GPT-2, transformers", "flax_transformers:gpt2_xl", FOUR, "transformers-4.48", DEVELOPED),
    Subject("BERT, transformers", "flax_transformers:bert_large", FOUR, "transformers-4.48", DEVELOPED),
    Subject("Gemma 2B, transformers", "flax_transformers:gemma_2b", {"layers": 3}, "transformers-4.48", DEVELOPED),
    Subject("Graph network, jraph", "jraph_nets:molecules", {}, "small", DEVELOPED),
    *(
        Subject(title, f"programs:{name}", kind=DEVELOPED)
        for name, title in {
            "lora": "Llama, LoRA",
            "grpo": "Llama, GRPO",
            "deepseek": "DeepSeek-V3",
            "dit": "DiT-XL/2",
            "conformer": "Conformer",
        }.items()
    ),
)
_BUILT_IN = tuple(
    Subject(name, f"models:{model}", sizes, kind=DEVELOPED, target=target)
    for name, model, sizes, target in (
        ("gpt", "gpt", {"layers": 4}, "tpu:v5e:4x4"),
        ("gpt, v5p", "gpt", {"layers": 4}, "tpu:v5p:2x2x4"),
        ("mlp", "mlp", {}, "tpu:v5e:4x4"),
        ("vit", "vit", {"layers": 4}, "tpu:v5e:4x4"),
        ("itx", "itx", {"layers": 8}, "tpu:v5e:4x4"),
        ("moe", "moe", {"layers": 2}, "tpu:v5e:4x4"),
        ("gns", "gns", {"steps": 2}, "tpu:v5e:4x4"),
        (
            "unet",
            "unet",
            {"levels": 2, "attention_levels": 1, "blocks": 1, "width": 128, "batch": 128},
            "tpu:v5e:4x4",
        ),
    )
)
SUBJECTS: dict[str, Subject] = {subject.name: subject for subject in (*_JUDGED, *_SEEN, *_BUILT_IN)}
MESH = {"data": 4, "model": 4}
OURS, SPECS = "ours", "specs alone"
PLANS: dict[str, tuple[str, ...] | int] = {
    OURS: (),
    "fsdp": ("fsdp:data", "fsdp:model"),
    "data parallel + megatron": ("data_parallel:data", "megatron:model"),
    "fsdp + megatron": ("fsdp:data", "megatron:model"),
    "data parallel": ("data_parallel:data", "data_parallel:model"),
    "fsdp + sequence": ("fsdp:data", "megatron_sequence:model"),
    "random 0": 0,
    "random 1": 1,
    SPECS: (),
}
"""Tactics, or the seed of random decisions; ``SPECS`` are those of ours given to plain ``jax.jit``, nothing else."""
