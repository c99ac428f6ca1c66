"""What the reference costs: memory of a grouped product, and the operation behind a dense one."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxgemm


def _temporary_bytes(f: Any, *args: Any) -> int:
    return jax.jit(f).lower(*args).compile().memory_analysis().temp_size_in_bytes


def _bytes(*arrays: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in arrays)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("num_groups", [8, 128])
def test_memory_of_a_grouped_product_does_not_grow_with_groups(dtype: str, num_groups: int) -> None:
    x = jax.ShapeDtypeStruct((2048, 256), dtype)
    w = jax.ShapeDtypeStruct((num_groups, 256, 4096 // num_groups * 8), dtype)
    sizes = jax.ShapeDtypeStruct((num_groups,), jnp.int32)
    out = jax.eval_shape(jaxgemm.grouped_gemm, x, w, sizes)
    limit = 3 * _bytes(x, w, out)
    assert _temporary_bytes(jaxgemm.grouped_gemm, x, w, sizes) < limit

    def backward(x: Any, w: Any, sizes: Any, ct: Any) -> Any:
        return jax.vjp(lambda x, w: jaxgemm.grouped_gemm(x, w, sizes), x, w)[1](ct)

    assert _temporary_bytes(backward, x, w, sizes, out) < limit


def test_a_dense_product_is_the_same_operation_as_jnp_dot() -> None:
    x = jax.ShapeDtypeStruct((256, 128), jnp.float32)
    w = jax.ShapeDtypeStruct((128, 512), jnp.float32)

    def operations(f: Any) -> list[str]:
        text = jax.jit(f).lower(x, w).compile().as_text()
        return [
            line.split(" = ")[1].split("metadata")[0]
            for line in text.splitlines()
            if " dot(" in line
        ]

    assert operations(jaxgemm.gemm) == operations(jnp.dot)


def test_leading_axes_of_activations_are_not_copied() -> None:
    x = jax.ShapeDtypeStruct((8, 64, 128), jnp.float32)
    w = jax.ShapeDtypeStruct((128, 32), jnp.float32)
    assert _temporary_bytes(jaxgemm.gemm, x, w) <= _temporary_bytes(jnp.matmul, x, w)
