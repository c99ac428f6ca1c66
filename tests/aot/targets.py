"""The GPUs that kernels are compiled for where there is none, as XLA wants them described.

The compiler reads a few of these numbers only (capability, shared memory, registers, cores); the
rest must be present. A process can compile for one of them: XLA settles on it once.
"""

import dataclasses
from typing import Any

from jax.experimental import topologies


@dataclasses.dataclass(frozen=True)
class Target:
    """A GPU to compile for.

    Attributes:
      device_kind: what `jax.Device.device_kind` says on the real one.
      major: compute capability.
      feature_extension: "ACCELERATED_FEATURES" for sm_90a and sm_100a.
      num_sms: streaming multiprocessors.
      smem_per_block: bytes that a block may opt in to.
      smem_per_sm: bytes.
    """

    device_kind: str
    major: int
    feature_extension: str
    num_sms: int
    smem_per_block: int
    smem_per_sm: int

    @property
    def config_text(self) -> str:
        """The text form of XLA's GpuTargetConfigProto."""
        info = {
            "name": f'"{self.device_kind}"',
            "device_vendor": '"NVIDIA Corporation"',
            "core_count": self.num_sms,
            "shared_memory_per_block": 48 * 1024,
            "shared_memory_per_block_optin": self.smem_per_block,
            "shared_memory_per_core": self.smem_per_sm,
            "registers_per_block_limit": 65536,
            "registers_per_core_limit": 65536,
            "threads_per_warp": 32,
            "threads_per_block_limit": 1024,
            "threads_per_core_limit": 2048,
            "thread_dim_limit_x": 1024,
            "thread_dim_limit_y": 1024,
            "thread_dim_limit_z": 64,
            "block_dim_limit_x": 2**31 - 1,
            "block_dim_limit_y": 65535,
            "block_dim_limit_z": 65535,
            "fpus_per_core": 128,
            "clock_rate_ghz": 1.98,
            "memory_bandwidth": 4_800_000_000_000,
            "device_memory_size": 141 << 30,
            "l2_cache_size": 50 << 20,
            "device_address_bits": 64,
            "driver_version": '"13.0.0"',
            "runtime_version": '"13.0.0"',
            "compile_time_toolkit_version": '"13.0.0"',
            "dnn_version": '"9.10.0"',
        }
        capability = f"{{ major: {self.major} feature_extension: {self.feature_extension} }}"
        fields = "\n".join(f"  {key}: {value}" for key, value in info.items())
        return (
            f"gpu_device_info {{\n{fields}\n  cuda_compute_capability {capability}\n}}\n"
            f'platform_name: "CUDA"\ndevice_description_str: "{self.device_kind}"\n'
            "dnn_version_info { major: 9 minor: 10 patch: 0 }\n"
        )

    def devices(self) -> list[Any]:
        """One such device, which can be compiled for but not run on."""
        topology = topologies.get_topology_desc(
            platform="cuda", topology="1x1x1", target_config=self.config_text
        )
        return topology.devices


TARGETS = {
    "h200": Target("NVIDIA H200", 9, "ACCELERATED_FEATURES", 132, 232448, 233472),
    "b200": Target("NVIDIA B200", 10, "ACCELERATED_FEATURES", 148, 232448, 233472),
    "a100": Target("NVIDIA A100-SXM4-80GB", 8, "NONE", 108, 166912, 167936),
}
