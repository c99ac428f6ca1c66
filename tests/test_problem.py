"""What a problem counts of itself: operations, bytes, batch size."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxgemm.problem import Problem
from tests.naive_specs import problem_of, ragged, spec_of


def test_dense_flops_and_bytes_by_hand() -> None:
    operands = ("a", "b", "c", "bias", "alpha", "beta")
    spec = spec_of(operands, batch=(("a", "d"), ("b", "bias", "c", "d")))
    size = {"m": 3, "n": 4, "k": 5, "b0": 2, "b1": 6}
    kinds = {"a": "bfloat16", "b": "float32", "c": "float16"}
    avals = [
        jax.ShapeDtypeStruct([size[x] for x in spec.labels(n)], jnp.dtype(kinds.get(n, "float32")))
        for n in operands
    ]
    problem = Problem.of(spec, avals)
    assert problem.flops == 2 * 3 * 4 * 5 * (2 * 6)
    read = 2 * (2 * 3 * 5) + 4 * (6 * 5 * 4) + 2 * (6 * 3 * 4) + 4 * (6 * 4) + 4 + 4
    assert problem.min_bytes == read + 4 * (2 * 6 * 3 * 4)
    assert problem.batch_size == 12
    saved = Problem.of(
        spec.replace(
            save_preactivation=True, activation="gelu", residual_dtype=np.dtype("float16")
        ),
        avals,
    )
    assert saved.min_bytes == problem.min_bytes + 2 * (2 * 6 * 3 * 4)
    assert saved.flops == problem.flops


def test_flops_of_a_summed_axis_a_gated_and_a_grouped_product() -> None:
    summed = problem_of(spec_of(("a", "b"), "TN", batch=(("a", "b"),)), m=3, n=4, k=5, b0=7)
    assert summed.flops == 2 * 3 * 4 * 5 * 7
    assert summed.min_bytes == 4 * (7 * 5 * 3 + 7 * 5 * 4 + 3 * 4)
    gated = problem_of(spec_of(("a", "b", "b_up"), activation="silu"), m=3, n=4, k=5)
    assert gated.flops == 2 * (2 * 3 * 4 * 5)
    assert gated.min_bytes == 4 * (3 * 5 + 2 * (5 * 4) + 3 * 4)
    # Every row is multiplied once, whichever group it is in.
    rows = problem_of(ragged("m", "NN", (), first=False), m=9, n=4, k=5, g=6)
    assert rows.flops == 2 * 9 * 4 * 5
    assert rows.min_bytes == 4 * (9 * 5 + 6 * 5 * 4 + 6 + 9 * 4)
    depth = problem_of(ragged("k", "TN", (), first=False), m=3, n=4, k=9, g=6)
    assert depth.flops == 2 * 3 * 4 * 9
    assert depth.min_bytes == 4 * (9 * 3 + 9 * 4 + 6 + 6 * 3 * 4)
