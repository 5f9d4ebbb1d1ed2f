"""What XLA's GPU compiler has to know of a GPU that is not there: its ``GpuTargetConfigProto``, as text.

The figures are those that XLA itself keeps of such devices (openxla/xla, xla/backends/gpu/target_config/specs); memory
and its rate come from the preset. What XLA only times things by (tensor units, PCIe) is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.devices import Device


@dataclass(frozen=True)
class GpuSpec:
    """A GPU's processor. Sizes are in bytes; ``shared`` is of one multiprocessor, ``shared_limit`` of one block."""

    name: str
    capability: int
    cores: int
    fpus_per_core: int
    shared: int
    shared_limit: int
    l2_cache: int
    clock_ghz: float
    accelerated: bool = False
    """Compiled for this architecture's own instructions (sm_90a, sm_100a)."""


KIB, MIB = 2**10, 2**20

SPECS = {
    "p100": GpuSpec("Tesla P100-SXM2-16GB", 6, 56, 64, 64 * KIB, 48 * KIB, 4 * MIB, 1.4805),
    "v100": GpuSpec("Tesla V100-SXM2-32GB", 7, 80, 64, 96 * KIB, 96 * KIB, 6 * MIB, 1.53),
    "a100-40": GpuSpec("NVIDIA A100-SXM4-40GB", 8, 108, 64, 164 * KIB, 163 * KIB, 40 * MIB, 1.41),
    "a100-80": GpuSpec("NVIDIA A100-SXM4-80GB", 8, 108, 64, 164 * KIB, 163 * KIB, 40 * MIB, 1.41),
    "h100": GpuSpec("NVIDIA H100 80GB HBM3", 9, 132, 128, 228 * KIB, 227 * KIB, 50 * MIB, 1.98, True),
    "b200": GpuSpec("NVIDIA B200", 10, 148, 128, 228 * KIB, 227 * KIB, 126 * MIB, 1.965, True),
}


def target_config(device: Device) -> str:
    """The text of the ``GpuTargetConfigProto`` of a preset."""
    spec = SPECS[device.name]
    return f"""
gpu_device_info {{
  name: "{spec.name}"
  device_vendor: "NVIDIA Corporation"
  cuda_compute_capability {{
    major: {spec.capability}
    feature_extension: {"ACCELERATED_FEATURES" if spec.accelerated else "NONE"}
  }}
  core_count: {spec.cores}
  fpus_per_core: {spec.fpus_per_core}
  clock_rate_ghz: {spec.clock_ghz}
  device_memory_size: {device.memory_bytes}
  memory_bandwidth: {int(device.memory_bytes_per_second)}
  l2_cache_size: {spec.l2_cache}
  shared_memory_per_core: {spec.shared}
  shared_memory_per_block: {48 * KIB}
  shared_memory_per_block_optin: {spec.shared_limit}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  threads_per_warp: 32
  threads_per_core_limit: 2048
  threads_per_block_limit: 1024
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  driver_version: "13.0.0"
  runtime_version: "12.8.0"
  compile_time_toolkit_version: "12.8.0"
  dnn_version: "9.10.0"
}}
platform_name: "CUDA"
dnn_version_info {{
  major: 9
  minor: 10
}}
device_description_str: "{spec.name}"
"""
