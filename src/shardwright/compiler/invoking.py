"""How each compiler is called ahead of time, what it has to be told, and what it tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from shardwright.compiler.behaviours import CPU, CUDA, TPU, Behaviour

RESERVED = Behaviour(
    name="the compiler economises only where memory is short",
    what="It takes what a device has. Told by this option that some of it is another's, it economises sooner: so a "
    "plan for less than a device has is compiled.",
    effect="xla_tpu_user_reserved_hbm_bytes",
    otherwise="",
    platforms=TPU,
    evidence="A training step of an MLP (4 layers of 8,192, batch 270,336, FSDP over 8 v5e), libtpu of jax 0.10.2: "
    "10.80 GiB of 15.75, 8.23 with 6 GiB reserved, and 7.72 with 8.",
    tests=("test_margins.py::test_verify_judges_by_the_limit_that_was_asked_for",),
    where=("compiler.invoking.options_within",),
)


def options_within(option: str, usable_bytes: int, limit_bytes: int) -> dict[str, str]:
    """Options that keep a program within a limit of memory below what a device has; none where there is no need."""
    spare = usable_bytes - limit_bytes
    return {option: str(spare)} if option and spare > 0 else {}


CYCLES = Behaviour(
    name="the final text has cycles",
    what="Each instruction has estimated_cycles, from which seconds are told; kernels that are written by hand have "
    "none.",
    effect=True,
    otherwise=False,
    platforms=TPU,
    evidence="libtpu of jax 0.10.2 and 0.12; the text of XLA for GPUs and CPUs has none.",
    tests=("test_hlo.py::test_cycles_of_a_fusion_are_its_own", "test_compile.py::test_data_parallelism_on_a_tpu"),
    where=("verify.figures.program_figures",),
)

REFUSES = Behaviour(
    name="a program that does not fit is not compiled",
    what="What must fit is the most that is allocated at one time. Other compilers do not ask, and what a program "
    "takes is compared with what the device has.",
    effect=True,
    otherwise=False,
    platforms=TPU,
    evidence="libtpu of jax 0.10.2: RESOURCE_EXHAUSTED where it does not fit; programs whose temporaries sum up to "
    "more than the device has were seen to compile.",
    tests=(
        "test_compile.py::test_a_program_that_does_not_fit_a_tpu",
        "test_compile.py::test_gpus_are_asked_whether_it_fits",
    ),
    where=("verify.figures.memory_figures",),
)

STANDS_IN = Behaviour(
    name="devices are parts of one host",
    what="CPU devices stand in for others: they have no memory or links of their own, so nothing is said of limits "
    "or of seconds, and Pallas kernels are interpreted.",
    effect=True,
    otherwise=False,
    platforms=CPU,
    evidence="jax 0.10.2 and 0.12, jax_num_cpu_devices.",
    tests=("test_compile.py::test_data_parallelism_on_cpus", "test_pallas.py::test_verify_runs_kernels_interpreted"),
    where=("verify.figures.memory_figures", "_jax.kernels_marked"),
)

CUDNN_ABSENT = Behaviour(
    name="cuDNN's version is asked for while tracing",
    what="JAX traces cuDNN's attention only where it finds a cuDNN; ahead of time, one is assumed.",
    effect=True,
    otherwise=False,
    platforms=CUDA,
    ops=("custom_call",),
    evidence="jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version of jax 0.10.2 and 0.12.",
    tests=("test_cudnn.py::test_sequences_and_heads_are_factors_forward_and_backward",),
    where=("_jax.cudnn_assumed",),
)


@dataclass(frozen=True)
class Invocation:
    """How a platform's compiler is run in a process of its own, where none of its devices is present.

    Attributes:
        extra: The extra of this package that installs it, and which ``packages`` then have it; none for JAX's own.
        packages: Any of these.
        environment: Of the process.
        options: Of XLA.
        local: Its devices are those of the process, as many as it is told to have.
        configured: It must be told what a device is like.

    """

    extra: str = ""
    packages: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    local: bool = False
    configured: bool = False


_QUIET = MappingProxyType({"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "1"})
INVOCATIONS: Mapping[str, Invocation] = MappingProxyType(
    {
        "tpu": Invocation(
            "tpu",
            ("libtpu",),
            {
                "JAX_PLATFORMS": "cpu",
                "TPU_SKIP_MDS_QUERY": "1",
                "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
                "TPU_LOG_DIR": "disabled",
                "TPU_MIN_LOG_LEVEL": "1",
                "TPU_STDERR_LOG_LEVEL": "1",
            },
        ),
        "cuda": Invocation(
            "gpu",
            ("jax_cuda12_plugin", "jax_cuda13_plugin"),
            _QUIET,
            {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False},
            configured=True,
        ),
        "cpu": Invocation(environment=_QUIET, local=True),
    }
)

NOT_TRIED = Behaviour(
    name="kernels are chosen by trying them on a GPU",
    what="Without one, XLA's own matrix products get the first tiling that comes to hand, or none and the compiler "
    "gives up; the library's are always there, so ahead of time these are taken.",
    effect=INVOCATIONS["cuda"].options,
    otherwise=MappingProxyType({}),
    platforms=CUDA,
    evidence="The CUDA plugin of jax 0.10.2 without a GPU: products of the built-in models do not compile with the "
    "default options (docs/benchmarks/gpu_memory.md).",
    tests=("test_compile.py::test_data_parallelism_on_gpus",),
    where=("verify.compile.compile_exported",),
)

RECORDS = (RESERVED, CYCLES, REFUSES, STANDS_IN, CUDNN_ABSENT, NOT_TRIED)
