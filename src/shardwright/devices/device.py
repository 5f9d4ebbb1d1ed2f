"""A device, as the cost model sees it: how fast it computes, how much it holds, and what joins it to others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from shardwright import compiler
from shardwright.compiler import Compiler
from shardwright.devices.sizes import parse_bytes
from shardwright.errors import DeviceError

PLATFORMS = ("cpu", "gpu", "tpu")

MAY_BE_ZERO = frozenset(
    {"entry_slots", "read_slots", "pack_slots", "alone_slots", "held_rows", "operand_slots", "prefetched_slots"}
    | {"sharpness", "prefetched_bytes", "cheap_slots", "expensive_slots", "reduce_slots"}
)
"""Costs of kernels that a device may have none of."""

_F64_SLOWDOWN = 16
"""f64 without a figure of its own: between 2 (data-centre GPUs) and 64 (others); TPUs emulate it by f32."""

_COMPLEX_MULTIPLICATIONS = 4


@dataclass(frozen=True)
class Link:
    """A link between devices, such as ICI, NVLink, DCN or a network.

    Attributes:
        name: The name that people use for it.
        bytes_per_second: The rate in one direction, from one device, along one dimension of a torus or into a switch.
        latency_seconds: The latency of one hop.
        devices: The largest number of devices that it joins (a slice, a node); None if there is no limit.
        torus_dimensions: The dimensions of the torus (1 to 3); 0 for a switch that joins every device with every other.
        ring_from: The length from which a dimension of the torus closes into a ring; shorter ones are lines.

    """

    name: str
    bytes_per_second: float
    latency_seconds: float
    devices: int | None = None
    torus_dimensions: int = 0
    ring_from: int = 0

    def __post_init__(self) -> None:
        _check_positive(f"the link {self.name!r}", bytes_per_second=self.bytes_per_second)
        _check_positive(f"the link {self.name!r}", or_zero=True, latency_seconds=self.latency_seconds)
        if self.devices is not None:
            _check_positive(f"the link {self.name!r}", devices=self.devices)
        if self.torus_dimensions not in (0, 1, 2, 3):
            raise DeviceError(f"the link {self.name!r} has torus_dimensions={self.torus_dimensions!r}; use 0 to 3.")


@dataclass(frozen=True)
class KernelCosts:
    """What kernels take beyond the peaks of a device.

    Those of devices that were calibrated are in ``devices/calibrated``, fitted to the cycles that the TPU compiler
    gives for designed programs (``python -m benchmarks.calibrate``). The defaults, which every other device has,
    were fitted by hand to programs for v5e. A *slot* is one lane's part of an instruction of the vector unit:
    ``vector_ops_per_second`` of them go by in a second.

    Attributes:
        launch_seconds: Of every kernel: a fusion in a loop never has fewer than about 2,000 cycles.
        matrix_efficiency: The part of the peak that large products reach (8,192³ in bf16).
        streamed_rows: How many rows go through a matrix unit at a time; fewer are padded.
        memory_efficiency: The part of the memory's rate that elementwise kernels reach, fitted to the totals of the
            built-in models.
        contraction_memory_efficiency: The same of contractions, whose operands come tile by tile.
        cheap_slots: For each entry that an elementwise op gives: a softmax of f32 takes 32 cycles for each register of
            8 × 128 entries, and each cycle has four slots.
        expensive_slots: The same of ``exp``, a division and the like.
        reduce_slots: For each entry that a reduction reads.
        slice_slots: For each byte read or written of a slice out of a loop's stack (a decoding step's cache: 286 bytes
            a cycle on v5e, 287 on each core of v5p).
        relayout_slots: The same of a copy to another layout (222 on v5e, 287 on v5p).
        small_tile_slots: The same of a copy into tiles of 2 or 4 rows (84 on v5e, 106 on v5p).
        entry_slots: For each entry that a kernel goes through, whatever it does with it: of a product those of its
            result, of a reduction what it reads, of others what they give, each of the results that they store.
        read_slots: For each byte that a kernel reads, other than a product's operands.
        pack_slots: For each byte that a kernel writes of a type of fewer than four bytes.
        alone_slots: For each entry of an op that is a kernel by itself, which the compiler tiles worse than a fusion.
        held_rows: Holding another block of an operand in a matrix unit takes as long as so many rows go through it.
        operand_slots: For each byte that a batch of products reads of its operands: each of the products is too small
            for reading to run beside writing.
        prefetched_slots: The same of operands that were brought into fast memory beforehand.
        sharpness: How well the matrix unit, the vector unit and the memory work at the same time: the kernel of a
            product takes the norm of that exponent of the three. 1 would be one after the other, and 0 stands for no
            exponent: the longest alone counts.
        prefetched_bytes: Operands of products up to this size are brought into fast memory beforehand, and their
            reading is not counted.

    """

    launch_seconds: float = 1.3e-6
    matrix_efficiency: float = 0.95
    streamed_rows: int = 8
    memory_efficiency: float = 0.95
    contraction_memory_efficiency: float = 0.53
    cheap_slots: float = 10.0
    expensive_slots: float = 30.0
    reduce_slots: float = 22.0
    slice_slots: float = 14.0
    relayout_slots: float = 17.0
    small_tile_slots: float = 44.0
    entry_slots: float = 0.0
    read_slots: float = 0.0
    pack_slots: float = 0.0
    alone_slots: float = 0.0
    held_rows: float = 0.0
    operand_slots: float = 0.0
    prefetched_slots: float = 0.0
    sharpness: float = 0.0
    prefetched_bytes: float = 0.0

    def __post_init__(self) -> None:
        may_be_zero = {name: cost for name, cost in vars(self).items() if name in MAY_BE_ZERO}
        _check_positive("kernel_costs", or_zero=True, **may_be_zero)
        _check_positive("kernel_costs", **{name: cost for name, cost in vars(self).items() if name not in MAY_BE_ZERO})
        if 0 < self.sharpness < 1:
            raise DeviceError(f"kernel_costs has sharpness={self.sharpness!r}; give a number from 1 on, or 0.")


@dataclass(frozen=True)
class Device:
    """One device as JAX counts them: a TPU chip (v2, v3: a core; 7x: half a chip), a GPU, or a host's CPU.

    Attributes:
        name: The name of the device, as in ``device="tpu-v5e"``.
        platform: JAX's name of the backend: "tpu", "gpu" or "cpu".
        flops_per_second: The peak rate of the matrix units by the operands' type ("bf16", "f32", "i8", ...). A plain
            number is taken as the rate of bf16.
        memory_bytes: The memory of the device; text such as "16GiB" works, too.
        memory_bytes_per_second: The rate between that memory and the chip.
        usable_bytes: The memory that a program's arguments, temporaries and code can use; by default all of it.
        links: The links between devices, innermost first: the last axes of a mesh run on the first link.
        clock_hertz: The rate of the cycles in which the compiler gives its figures; 0 if it gives none.
        matrix_unit: The rows and columns that a matrix unit takes at once; smaller operands are padded to it.
        tile: The sizes to which the last two dimensions of a tensor of four-byte elements are padded in memory; None if
            there is no padding.
        vector_ops_per_second: The rate of elementwise instructions, counted by lanes; 0 if memory is always slower.
        slice_shape: The chips along each dimension of a torus slice, such as (4, 4); by default the standard slice for
            the mesh.
        host_bytes_per_second: The rate between the device's memory and its host's in one direction; both directions
            work at once. 0 means that it is not known, and programs with values on the host are refused.
        host_memory_bytes: The memory of the host that one device can use; text such as "48GiB" works, too. 0 means that
            it is not known, and no limit is checked.
        on_chip_bytes: The memory beside the device's units in which results wait for the next kernels; 0 where it is
            not known how the compiler uses it.
        kernel_costs: What kernels take beyond these peaks.

    """

    name: str
    platform: str
    flops_per_second: Mapping[str, float] = field(hash=False)
    memory_bytes: int
    memory_bytes_per_second: float
    usable_bytes: int = 0
    links: tuple[Link, ...] = ()
    clock_hertz: float = 0.0
    matrix_unit: int = 1
    tile: tuple[int, int] | None = None
    vector_ops_per_second: float = 0.0
    slice_shape: tuple[int, ...] | None = None
    host_bytes_per_second: float = 0.0
    host_memory_bytes: int = 0
    on_chip_bytes: int = 0
    kernel_costs: KernelCosts = field(default_factory=KernelCosts)

    def __post_init__(self) -> None:
        whose = f"the device {self.name!r}"
        if self.platform not in PLATFORMS:
            raise DeviceError(f"{whose} has the unknown platform {self.platform!r}; use {', '.join(PLATFORMS)}.")
        peaks: Any = self.flops_per_second
        peaks = dict(peaks) if isinstance(peaks, Mapping) else {"bf16": peaks}
        if not peaks:
            raise DeviceError(f'{whose} needs a peak rate, such as flops_per_second={{"bf16": 1e14}}.')
        for dtype, peak in peaks.items():
            _check_positive(whose, **{f"flops_per_second[{dtype!r}]": peak})
        _check_positive(whose, memory_bytes_per_second=self.memory_bytes_per_second, matrix_unit=self.matrix_unit)
        _check_positive(
            whose,
            or_zero=True,
            clock_hertz=self.clock_hertz,
            vector_ops_per_second=self.vector_ops_per_second,
            host_bytes_per_second=self.host_bytes_per_second,
        )
        memory = parse_bytes(self.memory_bytes)
        usable = parse_bytes(self.usable_bytes) if self.usable_bytes else memory
        if usable > memory:
            raise DeviceError(f"{whose} has {usable:,} usable bytes, more than the {memory:,} of its memory.")
        normal = {
            "flops_per_second": peaks,
            "memory_bytes": memory,
            "usable_bytes": usable,
            "host_memory_bytes": parse_bytes(self.host_memory_bytes) if self.host_memory_bytes else 0,
            "links": tuple(self.links),
            "slice_shape": tuple(self.slice_shape) if self.slice_shape else None,
        }
        for name, value in normal.items():
            object.__setattr__(self, name, value)  # as dataclasses do it themselves where they are frozen

    @property
    def compiler(self) -> Compiler:
        """The compiler for such devices: the behaviours of XLA that apply to them."""
        return compiler.of(self.platform, self.generation)

    @property
    def generation(self) -> str:
        """The name without the platform: what is known of one generation's compiler alone is found by it."""
        return self.name.removeprefix(f"{self.platform}-")

    def flops(self, dtype: str) -> float:
        """Return the peak FLOP/s of contractions of an element type, as StableHLO writes it (``f32``, ``f8E4M3FN``).

        A type without a figure of its own is as fast as the type that it would be computed in:

        - f8, i4 and i8 as bf16, f16 as bf16 and the other way round, f32 as bf16 (what JAX's default precision does
          on TPUs), bf16 as f32 where no 16-bit type has a figure;
        - f64 at a sixteenth of f32;
        - larger integers and booleans as f32: no matrix unit takes them, but nobody multiplies large matrices of them;
        - complex numbers at a quarter of their parts' type, because each multiplication is four.
        """
        dtype = dtype.lower()
        if dtype in self.flops_per_second:
            return self.flops_per_second[dtype]
        if dtype.startswith("complex<"):
            return self.flops(dtype[len("complex<") : -1]) / _COMPLEX_MULTIPLICATIONS
        if dtype == "f64":
            return self.flops("f32") / _F64_SLOWDOWN
        for known in _substitutes(dtype):
            if known in self.flops_per_second:
                return self.flops_per_second[known]
        return max(self.flops_per_second.values())


def _substitutes(dtype: str) -> tuple[str, ...]:
    """Where to look for the peak of an element type, best first."""
    kind = dtype.removeprefix("s").removeprefix("u")
    if dtype.startswith(("f8", "f6", "f4")):
        return ("f8", "bf16", "f16", "f32")
    if kind in ("i2", "i4", "i8"):
        return (kind, "i8", "bf16", "f16", "f32")
    if dtype in ("bf16", "f16"):
        return ("bf16", "f16", "f32")
    return ("f32", "bf16", "f16")


def _check_positive(whose: str, *, or_zero: bool = False, **figures: Any) -> None:
    for name, figure in figures.items():
        number = isinstance(figure, Real) and not isinstance(figure, bool)
        if not number or not math.isfinite(figure) or figure < 0 or (figure == 0 and not or_zero):
            raise DeviceError(f"{whose} has {name}={figure!r}; give a positive number.")


@dataclass(frozen=True)
class AxisLink:
    """What one axis of a mesh runs on.

    Attributes:
        link: The link's name.
        bytes_per_second: One way, from one device, along the axis.
        latency_seconds: Of one hop.
        shape: "ring" (both directions carry a collective), "line" or "switch".

    """

    link: str
    bytes_per_second: float
    latency_seconds: float
    shape: str
