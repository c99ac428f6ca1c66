"""Devices: their names, and what JAX reports of one that nobody described."""

import types
from typing import Any

import jax
import pytest

from jaxgemm import device

H200, CPU = device.named("nvidia_h200"), device.CPU


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("nvidia_h200", "nvidia_h200"),
        ("h200", "nvidia_h200"),
        ("H200", "nvidia_h200"),
        ("b200", "nvidia_b200"),
        ("h100", "nvidia_h100_80gb_hbm3"),
        ("a100", "nvidia_a100-sxm4-80gb"),
        ("cpu", "cpu"),
    ],
)
def test_device_has_a_full_and_a_short_name(name: str, full: str) -> None:
    assert device.named(name).name == full


def _gpu(kind: str, capability: str, **fields: Any) -> Any:
    return types.SimpleNamespace(
        platform="gpu", device_kind=kind, compute_capability=capability, **fields
    )


def test_device_of_jax_is_a_row_with_the_counts_that_it_reports() -> None:
    known = device.from_jax(_gpu("NVIDIA H200", "9.0"))
    assert known == H200
    part = device.from_jax(
        _gpu("NVIDIA H200", "9.0", core_count=16, shared_memory_per_block_optin=1000)
    )
    assert (part.num_sms, part.smem_bytes, part.dram_gbps) == (16, 1000, H200.dram_gbps)
    assert device.from_jax(jax.devices("cpu")[0]) == CPU


def test_unknown_device_gets_the_rates_of_its_generation_and_keeps_its_name() -> None:
    pcie = device.from_jax(_gpu("NVIDIA H100 PCIe", "9.0", core_count=114))
    assert (pcie.name, pcie.num_sms, pcie.tflops) == ("nvidia_h100_pcie", 114, H200.tflops)
    newer = device.from_jax(_gpu("NVIDIA GB202", "12.0"))
    assert newer.compute_capability == (12, 0)
    assert newer.tflops == device.named("nvidia_a100-sxm4-80gb").tflops


def test_peak_of_a_family_that_a_chip_lacks_is_that_of_plain_fmas() -> None:
    a100 = device.named("nvidia_a100-sxm4-80gb")
    assert a100.peak_tflops("f8") == a100.peak_tflops("") < a100.peak_tflops("i8")


def test_current_device_is_the_default_one() -> None:
    assert device.current() == CPU
    assert device.current_cuda() is None
    with jax.default_device(jax.devices("cpu")[1]):
        assert device.current() == CPU
