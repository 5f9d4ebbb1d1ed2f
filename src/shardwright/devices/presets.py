"""Devices that people have, every figure with its source.

The sources, by the names used below:

- *Cloud*: Google Cloud's pages on the architecture of each version (docs.cloud.google.com/tpu/docs/v5e, ...).
- *Book*: "How to Scale Your Model" (jax-ml.github.io/scaling-book), the tables "TPU Specs" and "Summary of GPU specs".
- *compiler*: measured with the libtpu of jax 0.10.2, by compiling for a topology: the largest argument of a program
  that still compiles, in whole MiB, and `estimated_cycles` of large bf16 matrix products.
- *data sheet*: NVIDIA's, for the SXM module; dense figures, where it prints those with sparsity they are halved.
- *XLA*: openxla/xla, xla/backends/gpu/target_config/specs/*.txtpb: what CUDA reports on such a device.
- *DGX*: NVIDIA's data sheets of the systems with eight of these GPUs: the memory of the host, an eighth of it each.
- *calibrated*: what kernels take beyond the peaks (``KernelCosts``), and the part of bf16's rate that products of f32
  have, from ``calibrated/`` where it has a file of that device, written by ``python -m benchmarks.calibrate``. Others
  have the defaults, fitted by hand to the cycles that the libtpu of jax 0.10.2 gives for v5e, and not measured on GPUs
  or CPUs.
- *NCCL*: nccl/src/graph/tuning.cc, `hwLat`, ring with LL128, the protocol of middle sizes, where latency matters.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from shardwright.devices.calibration import calibration
from shardwright.devices.device import Device, Link

_GB = 1e9
_TERA = 1e12
_MIB = 1024**2
_GIB = 1024**3


def _tpu_peaks(bf16: float, *, f32: float, i8: float = 1, f8: float = 1) -> dict[str, float]:
    """Peaks by type, the others as multiples of bf16's.

    JAX's default precision multiplies f32 matrices on a TPU in one pass of bf16 (jax.lax.Precision.DEFAULT), but they
    are converted on the way: ``f32`` is the part of bf16's rate that the compiler's cycles give for 8192³. With
    "highest" it takes six passes.
    """
    return {"bf16": bf16, "f32": bf16 * f32, "i8": bf16 * i8, "f8": bf16 * f8}


def _ici(bytes_per_second: float, devices: int, dimensions: int, ring_from: int) -> Link:
    # 1 µs a hop: Book, question 5 on TPUs.
    return Link("ICI", bytes_per_second, 1e-6, devices, dimensions, ring_from)


def _dcn(bytes_per_second: float) -> Link:
    # Latency assumed: two PCIe transfers and a network of several switches, TCP between hosts.
    return Link("DCN", bytes_per_second, 2e-5)


_TILE = (8, 128)  # Sublanes and lanes of the vector registers: Book, "VPU".


def _vector_unit(clock_hertz: float, cores: int) -> float:
    """Lanes times ALUs times clock (Book, "VPU": 8 x 128 lanes with four ALUs each on v5p; taken for all)."""
    return 8 * 128 * 4 * clock_hertz * cores


_TPUS = (
    Device(
        # One of the two cores of a chip, with half of all that the chip has.
        name="tpu-v3",
        platform="tpu",
        flops_per_second=_tpu_peaks(123 * _TERA / 2, f32=0.98),  # Cloud; i8 and f8 go no faster (compiler).
        memory_bytes=16 * _GIB,  # Cloud: 32 GiB a chip.
        memory_bytes_per_second=900 * _GB / 2,  # Cloud.
        usable_bytes=15854 * _MIB,  # compiler: "15.48G".
        links=(
            # Assumed: the two cores meet in the chip's router, at the rate of one of its links.
            Link("chip", 100 * _GB, 1e-6, devices=2),
            # Book: 100 GB/s a link, as follows from Cloud's 6.4 TB/s across the middle of the pod; half for each core.
            # (Jouppi et al., CACM 2020, have 656 Gbit/s.) A pod is a torus of 32 x 32 chips.
            _ici(100 * _GB / 2, devices=2048, dimensions=2, ring_from=32),
            _dcn(25 * _GB / 8),  # Book: 25 GB/s for each host, which has 8 cores.
        ),
        clock_hertz=940e6,  # Two 128 x 128 units a core; a product of 32768³ comes to 98% of the peak (compiler).
        matrix_unit=128,
        tile=_TILE,
        vector_ops_per_second=_vector_unit(940e6, cores=1),
        host_bytes_per_second=15 * _GB / 2,  # Book: PCIe is "typically around 1.5e10 bytes / second per chip".
        host_memory_bytes=340 * 10**9 // 8,  # Cloud (GKE): 340 GB for the four chips of ct3-hightpu-4t.
    ),
    Device(
        # A chip: JAX sees its two cores as one device ("megacore").
        name="tpu-v4",
        platform="tpu",
        flops_per_second=_tpu_peaks(275 * _TERA, f32=0.82),  # Cloud: "bf16 or int8".
        memory_bytes=32 * _GIB,  # Cloud.
        memory_bytes_per_second=1228 * _GB,  # Cloud: 1200; Jouppi et al., ISCA 2023: 1228.
        usable_bytes=31485 * _MIB,  # compiler, with chip_config_name="megacore": "30.75G". (A core alone: "15.25G".)
        links=(
            _ici(45 * _GB, devices=4096, dimensions=3, ring_from=4),  # Book. Cubes of 4 x 4 x 4 close optically.
            _dcn(6.25 * _GB),  # Book: typical for a chip.
        ),
        clock_hertz=1050e6,  # Eight 128 x 128 units; a product of 32768³ comes to 96% of the peak (compiler).
        matrix_unit=128,
        tile=_TILE,
        vector_ops_per_second=_vector_unit(1050e6, cores=2),
        host_bytes_per_second=16 * _GB,  # Book: "PCIe bandwidth for TPU v4 is 16GB / second each way".
        host_memory_bytes=407 * 10**9 // 4,  # Cloud (GKE): 407 GB for the four chips of ct4p-hightpu-4t.
    ),
    Device(
        name="tpu-v5e",
        platform="tpu",
        flops_per_second=_tpu_peaks(197 * _TERA, f32=0.68, i8=2),  # Cloud.
        memory_bytes=16 * _GIB,  # Cloud.
        memory_bytes_per_second=819 * _GB,  # Cloud.
        usable_bytes=16126 * _MIB,  # compiler: "15.75G", that is 16 GiB without "reserved 258.00M".
        links=(
            # Book. (Cloud: 400 GB/s for the four links both ways, 50 GB/s each one way.) A pod is a torus of 16 x 16.
            _ici(45 * _GB, devices=256, dimensions=2, ring_from=16),
            _dcn(3.125 * _GB),  # Book; Cloud: two NICs of 100 Gbit/s for eight chips.
        ),
        clock_hertz=1.5e9,  # Book. Four 128 x 128 units; a product of 32768³ comes to 95% of the peak (compiler).
        matrix_unit=128,
        tile=_TILE,
        vector_ops_per_second=_vector_unit(1.5e9, cores=1),
        host_bytes_per_second=15 * _GB,  # Book: PCIe "typically around 1.5e10 bytes / second per chip"; v6e twice v5's.
        host_memory_bytes=48 * 10**9,  # Cloud: 48, 192 and 384 GB for VMs of one, four and eight chips.
        on_chip_bytes=112 * _MIB,  # Book: 128 MiB of VMEM; compiler: 16 MiB of it are a kernel's own.
    ),
    Device(
        # A chip of two cores, one device.
        name="tpu-v5p",
        platform="tpu",
        flops_per_second=_tpu_peaks(459 * _TERA, f32=0.68, i8=2),  # Cloud; i8: Book.
        memory_bytes=96 * _GIB,  # Book; Cloud says 95 GiB, but the compiler grants more than that.
        memory_bytes_per_second=2765 * _GB,  # Cloud.
        usable_bytes=98041 * _MIB,  # compiler: "95.74G", that is 96 GiB without "reserved 263.00M".
        links=(
            _ici(90 * _GB, devices=6144, dimensions=3, ring_from=4),  # Book; Cloud: the largest slice is 16 x 16 x 24.
            _dcn(6.25 * _GB),  # Book; Cloud: 50 Gbit/s a chip.
        ),
        clock_hertz=1.75e9,  # Eight 128 x 128 units; a product of 32768³ comes to 96% of the peak (compiler).
        matrix_unit=128,
        tile=_TILE,
        vector_ops_per_second=_vector_unit(1.75e9, cores=2),
        host_bytes_per_second=15 * _GB,  # Book: as v5e.
        host_memory_bytes=448 * 10**9 // 4,  # Cloud: 448 GB for a VM of four chips.
    ),
    Device(
        name="tpu-v6e",
        platform="tpu",
        flops_per_second=_tpu_peaks(918 * _TERA, f32=0.62, i8=2),  # Cloud; f8 as bf16.
        memory_bytes=32 * _GIB,  # Cloud.
        memory_bytes_per_second=1638 * _GB,  # Cloud.
        usable_bytes=31996 * _MIB,  # compiler: "31.25G".
        links=(
            _ici(90 * _GB, devices=256, dimensions=2, ring_from=16),  # Book; Cloud: a pod is a torus of 16 x 16.
            _dcn(12.5 * _GB),  # Book; Cloud: four NICs of 200 Gbit/s for eight chips.
        ),
        # Cloud has two 256 x 256 units, which the peak would run at 3.5 GHz. The compiler's cycles are of half that
        # clock, with twice the work in each: the best product found, 16384 x 4096 x 4096, comes to 91% of the peak.
        clock_hertz=1.75e9,
        matrix_unit=256,
        tile=_TILE,
        vector_ops_per_second=_vector_unit(1.75e9, cores=1),
        host_bytes_per_second=32 * _GB,  # Book: "Trillium (TPU v6e) has 32GB/s".
        host_memory_bytes=720 * 10**9 // 4,  # Cloud: 720 GB for a VM of four chips.
    ),
    Device(
        # One of the two chiplets of a chip, with half of all that the chip has.
        name="tpu-7x",
        platform="tpu",
        flops_per_second=_tpu_peaks(2307 * _TERA / 2, f32=0.62, f8=2),  # Cloud; i8 goes no faster than bf16 (compiler).
        memory_bytes=96 * _GIB,  # Cloud: 192 GiB a chip.
        memory_bytes_per_second=7380 * _GB / 2,  # Cloud.
        usable_bytes=97020 * _MIB,  # compiler: "94.75G", that is 95 GiB without "reserved 260.00M".
        links=(
            # Cloud, "Dual-chiplet architecture": six times as fast as one ICI link.
            Link("chip", 6 * 90 * _GB, 1e-6, devices=2),
            # As v5p, for which Cloud has the same 1200 GB/s a chip; half for each chiplet. 16 x 24 x 24 chips a pod.
            _ici(90 * _GB / 2, devices=2 * 9216, dimensions=3, ring_from=4),
            _dcn(12.5 * _GB / 2),  # Cloud: 100 Gbit/s a chip.
        ),
        # The clock at which four 256 x 256 units have the peak; the best product found, 65536 x 8192 x 2048, comes to
        # 96% of it (compiler).
        clock_hertz=2.2e9,
        matrix_unit=256,
        tile=_TILE,
        vector_ops_per_second=_vector_unit(2.2e9, cores=1),
        host_bytes_per_second=32 * _GB / 2,  # Not published: as a chip of v6e.
        host_memory_bytes=960 * 10**9 // 8,  # Cloud: 960 GB for a VM of four chips.
    ),
)

_MEMORY_FRACTION = 0.75
"""Of a GPU's memory JAX takes this much at the start, and no more later (XLA_CLIENT_MEM_FRACTION changes it).

docs.jax.dev, "GPU memory allocation". That a user gets without settings, so that is what a plan may count on.
"""


def _gpu(
    name: str,
    peaks: Mapping[str, float],
    *,
    memory_bytes: int,
    memory_bytes_per_second: float,
    nvlink: float,
    network: float,
    host: float,
    host_memory_bytes: int,
    matrix_unit: int = 16,  # The shape of a warp's product, m16n16k16: PTX ISA, "wmma".
) -> Device:
    return Device(
        name=name,
        platform="gpu",
        flops_per_second={dtype: peak * _TERA for dtype, peak in peaks.items()},
        memory_bytes=memory_bytes,
        memory_bytes_per_second=memory_bytes_per_second,
        usable_bytes=int(memory_bytes * _MEMORY_FRACTION),
        links=(Link("NVLink", nvlink, 1.9e-6, devices=8), Link("network", network, 4e-6)),  # latencies: NCCL
        matrix_unit=matrix_unit,
        host_bytes_per_second=host,
        host_memory_bytes=host_memory_bytes,
    )


_A100_PEAKS = {"f64": 19.5, "f32": 156, "bf16": 312, "f16": 312, "i8": 624}  # data sheet; f32 is TF32

# f32: from the A100 on JAX's default precision is TF32; before, it is that of the CUDA cores. P100 and V100 do not have
# bf16, XLA computes it as f32. Eight GPUs make a node; those of P100 and V100 (DGX-1) are a hybrid cube mesh, here a
# switch of the same rate. NVLink: data sheets, half of what they print for both directions.
_GPUS = (
    _gpu(
        "p100",
        {"f64": 5.3, "f32": 10.6, "bf16": 10.6, "f16": 21.2},  # data sheet
        memory_bytes=17_066_885_120,  # XLA
        memory_bytes_per_second=732 * _GB,  # data sheet
        nvlink=80 * _GB,
        network=6.25 * _GB,  # DGX-1: four 100 Gbit/s InfiniBand ports for eight GPUs
        host=16 * _GB,  # data sheet: PCIe 32 GB/s, both ways
        host_memory_bytes=512 * 10**9 // 8,  # DGX: 512 GB
        matrix_unit=1,  # no tensor cores
    ),
    _gpu(
        "v100",
        {"f64": 7.8, "f32": 15.7, "bf16": 15.7, "f16": 125},  # data sheet
        memory_bytes=16_935_682_048,  # XLA: the one of 16 GB
        memory_bytes_per_second=900 * _GB,  # data sheet
        nvlink=150 * _GB,
        network=6.25 * _GB,  # DGX-1: as above
        host=16 * _GB,  # data sheet: PCIe 32 GB/s, both ways
        host_memory_bytes=512 * 10**9 // 8,  # DGX: 512 GB
    ),
    _gpu(
        "a100-40",
        _A100_PEAKS,
        memory_bytes=42_331_013_120,  # XLA
        memory_bytes_per_second=1555 * _GB,  # data sheet
        nvlink=300 * _GB,  # Book, too
        network=25 * _GB,  # DGX A100: one 200 Gbit/s InfiniBand port for each GPU
        host=32 * _GB,  # data sheet: PCIe Gen4 64 GB/s, both ways
        host_memory_bytes=10**12 // 8,  # DGX A100 320GB: 1 TB
    ),
    _gpu(
        "a100-80",
        _A100_PEAKS,
        memory_bytes=85_100_068_864,  # XLA
        memory_bytes_per_second=2039 * _GB,  # data sheet
        nvlink=300 * _GB,
        network=25 * _GB,
        host=32 * _GB,  # data sheet: PCIe Gen4 64 GB/s, both ways
        host_memory_bytes=2 * 10**12 // 8,  # DGX A100 640GB: 2 TB
    ),
    _gpu(
        "h100",
        {"f64": 67, "f32": 494.5, "bf16": 989.5, "f16": 989.5, "i8": 1979, "f8": 1979},  # data sheet; f32 is TF32
        memory_bytes=84_942_979_072,  # XLA
        memory_bytes_per_second=3350 * _GB,  # data sheet
        nvlink=450 * _GB,  # Book, too
        network=50 * _GB,  # Book: 400 GB/s out of a node of eight
        host=64 * _GB,  # data sheet: PCIe Gen5 128 GB/s, both ways
        host_memory_bytes=2 * 10**12 // 8,  # DGX H100: 2 TB
    ),
    _gpu(
        "b200",
        {
            "f64": 37,
            "f32": 1100,
            "bf16": 2250,
            "f16": 2250,
            "i8": 4500,
            "f8": 4500,
        },  # data sheet of HGX B200, an eighth
        memory_bytes=191_514_411_008,  # XLA
        memory_bytes_per_second=7672 * _GB,  # XLA; data sheets have 7.7 or 8 TB/s
        nvlink=900 * _GB,  # Book, too
        network=50 * _GB,  # DGX B200: one 400 Gbit/s port for each GPU
        host=64 * _GB,  # data sheet of HGX B200: PCIe Gen5 128 GB/s, both ways
        host_memory_bytes=2 * 10**12 // 8,  # DGX B200: 2 TB, to which more can be added
    ),
)


def cpu_device(devices: int = 1) -> Device:
    """The host's processor as JAX shows it: one device, or as many as ``jax_num_cpu_devices`` says.

    They share the cores and the memory. All rates are assumed, for a plan's sake and not to foretell times: a core does
    16 multiplications and additions of f32 in each of 2e9 cycles a second, memory gives 20 GB/s, and a collective
    copies through it at a quarter of that.
    """
    peak = 2 * 16 * 2e9 * (os.cpu_count() or 1) / devices
    memory_rate = 20 * _GB / devices
    return Device(
        name="cpu",
        platform="cpu",
        flops_per_second={"f32": peak, "f64": peak / 2},
        memory_bytes=_host_memory_bytes() // devices,
        memory_bytes_per_second=memory_rate,
        links=(Link("memory", memory_rate / 4, 1e-5),),
        host_bytes_per_second=memory_rate / 4,  # a copy from one place of the same memory to another
        host_memory_bytes=_host_memory_bytes() // devices,
    )


def _host_memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every system tells
        return 8 * _GIB


def _calibrated(device: Device) -> Device:
    """A device with what its calibration says, if it has one."""
    found = calibration(device.name)
    if found is None:
        return device
    peak = device.flops_per_second["bf16"]
    rates = {dtype: peak * part for dtype, part in found.rates.items()}
    return replace(device, kernel_costs=found.kernel_costs, flops_per_second={**device.flops_per_second, **rates})


PRESETS: Mapping[str, Device] = MappingProxyType(
    {device.name: _calibrated(device) for device in (*_TPUS, *_GPUS, cpu_device())}
)
