"""Options of compilers that are decisions, too: settings that may make a program faster, and what they are for.

None of them changes what a program computes. Tuning tries them on the best plans, in the order of ``RECORDS``, where
the compiled program has something that they are about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from shardwright.compiler.behaviours import CUDA, TPU, Behaviour


@dataclass(frozen=True)
class Setting:
    """Options of XLA that are set together, and the collectives that they are about; none where about any program."""

    options: Mapping[str, str]
    collectives: tuple[str, ...] = ()

    def matters(self, counts: Mapping[str, int]) -> bool:
        """Whether a compiled program with so many collectives of each kind has any that it is about."""
        return not self.collectives or any(counts.get(kind) for kind in self.collectives)


_TESTS = ("test_tune.py::test_options_are_tried_where_they_matter_and_kept_where_they_pay",)
_WHERE = ("compiler.options.settings_of", "tune.loop.Loop")
_TIPS = (
    "Tips for High-Performance LLMs with JAX and XLA, of NVIDIA's JAX-Toolbox; an option of XLA in jaxlib 0.10.2. Not "
    "judged: the compiler for GPUs tells no seconds ahead of time, so that tuning does not try it."
)

_Tried = Behaviour[Setting | None]


def _tpu(
    name: str,
    why: str,
    evidence: str,
    options: dict[str, str],
    *collectives: str,
    generations: frozenset[str] | None = None,
) -> _Tried:
    return Behaviour(
        name=name,
        what=why,
        effect=Setting(MappingProxyType(options), collectives),
        otherwise=None,
        platforms=TPU,
        generations=generations,
        evidence=evidence,
        tests=_TESTS,
        where=_WHERE,
    )


def _gpu(name: str, why: str, options: dict[str, str]) -> _Tried:
    return Behaviour(
        name=name,
        what=why,
        effect=Setting(MappingProxyType(options)),
        otherwise=None,
        platforms=CUDA,
        evidence=_TIPS,
        tests=("test_tune.py::test_every_option_has_a_reason",),
        where=("compiler.options.settings_of",),
    )


VMEM = _tpu(
    "64 MiB of the chip's memory for one kernel",
    "A kernel may take so much of the chip's own memory. With more than by default, tiles are larger and operands are "
    "read less often; what is left holds less of what later kernels want early, and compiling takes longer.",
    "libtpu of jax 0.10.2, a GPT of 4 layers, FSDP on v5e 4x4: 110.2 ms by default, 104.9 with it. A decoding step of "
    "4 layers: 2.94 and 2.91 ms on v5e 4x4, 1.70 and 1.89 on v6e 4x4, and one of pages 0.92 and 1.08 there. With 96 "
    "MiB 3.13 in place of 3.16 on v5e.",
    {"xla_tpu_scoped_vmem_limit_kib": "65536"},
)

PLAIN_PRODUCTS = _tpu(
    "no products in a loop of permutes",
    "A product with a gathered operand, or whose sums are scattered, is made a loop of parts and permutes only above "
    "so many MiB. Without such loops products are whole, and gathers run beside others.",
    "libtpu of jax 0.10.2, a GPT of 4 layers, FSDP on v5e 4x4: 110.2 ms by default, 106.1 with it, and 99.5 with 64 "
    "MiB of the chip's memory for one kernel besides. A decoding step of 4 layers: 1.70 and 1.58 ms on v6e 4x4, the "
    "same on v5e 4x4.",
    {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"},
    "collective-permute",
)

EARLY_GATHERS = _tpu(
    "all-gathers beside products, as on v5e",
    "Compilers for other generations wait for each all-gather unless they are told to take it apart into steps that "
    "products do on the way. What is gathered early is in memory for longer.",
    "libtpu of jax 0.10.2, a GPT of 2 layers, FSDP on 4x4, ms by default and with it: 26.7 and 25.5 on v6e, where 4.0 "
    "and 2.2 wait for communication, 33.5 and 32.2 on v5p, where 2.9 and 1.6 do; 12 all-gathers are taken apart, as on "
    "v5e without being told. Memory 1.30 and 1.49 GiB on v6e. The three options of fusions alone change nothing, nor "
    "does xla_enable_async_all_gather alone.",
    {
        "xla_tpu_enable_async_collective_fusion": "true",
        "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "true",
        "xla_tpu_enable_async_collective_fusion_multiple_steps": "true",
        "xla_enable_async_all_gather": "true",
        "xla_tpu_overlap_compute_collective_tc": "true",
    },
    "all-gather",
    generations=frozenset({"v4", "v5p", "v6e", "7x"}),
)

EARLY_GPU = _gpu(
    "collectives started ahead on a GPU",
    "The scheduler that hides latencies moves the starts of collectives ahead and their ends back, so that kernels run "
    "beside them; tensors live longer for it.",
    {"xla_gpu_enable_latency_hiding_scheduler": "true"},
)

PIPELINED_GPU = _gpu(
    "collectives of one turn of a loop beside the next, on a GPU",
    "Gathers of what the next turn needs, and sums that no later turn needs, are taken out of the turn that they stand "
    "in and run beside another one.",
    {
        "xla_gpu_enable_pipelined_all_gather": "true",
        "xla_gpu_enable_pipelined_all_reduce": "true",
        "xla_gpu_enable_pipelined_reduce_scatter": "true",
    },
)

COMBINED_GPU = _gpu(
    "collectives of up to 1 GiB made one, on a GPU",
    "Small collectives are made one until they have so many bytes: fewer messages, which can start only when all of "
    "their tensors are there.",
    {
        "xla_gpu_all_gather_combine_threshold_bytes": "1073741824",
        "xla_gpu_all_reduce_combine_threshold_bytes": "1073741824",
        "xla_gpu_reduce_scatter_combine_threshold_bytes": "1073741824",
    },
)

RECORDS: tuple[_Tried, ...] = (VMEM, PLAIN_PRODUCTS, EARLY_GATHERS, EARLY_GPU, PIPELINED_GPU, COMBINED_GPU)


def settings_of(platform: str, generation: str | None = None) -> tuple[_Tried, ...]:
    """The settings of a platform's compiler, by JAX's name of it or of its devices, in the order to try them.

    With a generation of devices those that are for it, and otherwise those of all.
    """
    lowered = {"gpu": "cuda"}.get(platform, platform)
    return tuple(
        record
        for record in RECORDS
        if lowered in record.platforms and (generation is None or record.applies(lowered, generation))
    )
