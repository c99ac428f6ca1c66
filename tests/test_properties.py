"""What holds for every call: random calls against the float64 oracle.

Sizes come from a short list and calls are eager, because compiling is what takes the time; each
property has a `slow` twin that draws far more, from longer lists.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import oracle
from tests.cases import Case, GroupedCase

FLOATS = ["float32", "bfloat16", "float16"]
FP8 = ["float8_e4m3fn", "float8_e5m2"]
LAYOUTS = ["NN", "NT", "TN", "TT"]
CLAMPS = [None, None, None, (-1.0, 2.0), (0.0, 6.0), (None, 0.5), (-0.25, None)]
ACTIVATIONS = [None, "relu", "gelu", "gelu_exact", "silu", "sigmoid", "tanh", "relu2"]
BATCHES = [
    ((), ()), ((), ()), ((3,), ()), ((), (3,)), ((3,), (3,)), ((2, 1), (3,)), ((2, 3), (2, 1)),
    ((0,), (1,)), ((1,), ()),
]  # fmt: skip
SMALL, LARGE = [0, 1, 2, 5, 17], [0, 1, 2, 3, 5, 8, 15, 16, 17, 33, 64, 65, 130]


# Calls of gemm.


@dataclasses.dataclass(frozen=True)
class Scalars:
    """How alpha and beta are given: Python numbers, numpy's, arrays, or traced."""

    kind: str

    def run(self, case: Case, operands: dict[str, jax.Array]) -> jax.Array:
        """The call, with its scalars so given."""
        given = {n: x for n, x in (("alpha", case.alpha), ("beta", case.beta)) if x is not None}
        if self.kind == "traced":
            return jax.jit(lambda xs: case.run(operands, **xs))(given)
        make = {"python": lambda x: x, "numpy": np.asarray, "array": jnp.asarray}[self.kind]
        return case.run(operands, **{name: make(x) for name, x in given.items()})


SCALAR_KINDS = st.builds(Scalars, st.sampled_from(["python", "numpy", "array", "traced"]))


def _float_cases(sizes: list[int]) -> st.SearchStrategy[Case]:
    size = st.sampled_from(sizes)
    c = st.sampled_from([None, "full", "row", "column", "scalar"])
    return st.builds(
        Case,
        m=size,
        n=size,
        k=size,
        a=st.sampled_from(FLOATS + FP8),
        b=st.sampled_from(FLOATS + FP8),
        out=st.sampled_from([None, None, *FLOATS, *FP8]),
        layout=st.sampled_from(LAYOUTS),
        c=c,
        bias=st.booleans(),
        alpha=st.sampled_from([1, 0, -0.75, 2.5]),
        beta=st.sampled_from([None, 0, 1, -0.5]),
        activation=st.sampled_from(ACTIVATIONS),
        clamp=st.sampled_from(CLAMPS),
        addend=st.sampled_from(FLOATS + FP8),
        batch=st.sampled_from(BATCHES),
        data=st.sampled_from(["normal", "positive", "cancelling"]),
    ).map(_without_lone_beta)


def _integer_cases(sizes: list[int]) -> st.SearchStrategy[Case]:
    size = st.sampled_from(sizes)
    return st.builds(
        Case,
        m=size,
        n=size,
        k=size,
        a=st.just("int8"),
        b=st.just("int8"),
        out=st.sampled_from([None, "int32", *FLOATS]),
        layout=st.sampled_from(LAYOUTS),
        c=st.sampled_from([None, "full", "row", "column", "scalar"]),
        bias=st.booleans(),
        alpha=st.sampled_from([1, 0, -3]),
        beta=st.sampled_from([None, 0, 1, 5]),
        activation=st.sampled_from([None, "relu"]),
        clamp=st.sampled_from([None, None, (-7, 900), (0, None)]),
        addend=st.sampled_from(["int8", "int16", "int32"]),
        batch=st.sampled_from(BATCHES),
    ).map(_without_lone_beta)


def _without_lone_beta(case: Case) -> Case:
    return case if case.c else dataclasses.replace(case, beta=None)


def _check_gemm(case: Case, scalars: Scalars, seed: int) -> None:
    operands = case.operands(seed)
    if case.beta == 0 and jnp.issubdtype(jnp.dtype(case.addend), jnp.floating):
        operands["c"] = jnp.full_like(operands["c"], jnp.nan)
    result = scalars.run(case, operands)
    # Both may be infinite.
    with np.errstate(invalid="ignore"):
        oracle.check(result, case.answer(operands), case.expected_out)
    shaped = jax.eval_shape(case.run, operands)
    assert (shaped.shape, shaped.dtype, shaped.weak_type) == (result.shape, result.dtype, False)


@settings(max_examples=150)
@given(_float_cases(SMALL), SCALAR_KINDS, st.integers(0, 9))
def test_gemm_of_floats_is_within_its_bound(case: Case, scalars: Scalars, seed: int) -> None:
    _check_gemm(case, scalars, seed)


@settings(max_examples=25)
@given(_integer_cases(SMALL), SCALAR_KINDS, st.integers(0, 9))
def test_gemm_of_integers_is_exact(case: Case, scalars: Scalars, seed: int) -> None:
    _check_gemm(case, scalars, seed)


@pytest.mark.slow
@settings(max_examples=600)
@given(_float_cases(LARGE) | _integer_cases(LARGE), SCALAR_KINDS, st.integers(0, 99))
def test_gemm_is_within_its_bound_in_a_longer_sweep(
    case: Case, scalars: Scalars, seed: int
) -> None:
    _check_gemm(case, scalars, seed)


# Calls of grouped_gemm.


def _grouped_cases(sizes: list[int], rows: list[int]) -> st.SearchStrategy[GroupedCase]:
    size = st.sampled_from(sizes)
    # Long enough that the sum is often less than m, often more, and groups are often empty.
    groups = st.lists(st.sampled_from([0, 0, 1, 3, 7, 30]), min_size=1, max_size=4).map(tuple)
    dtypes = st.sampled_from(
        [("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32"), tuple(FP8)]
    )
    cases = st.builds(
        lambda types, **fields: GroupedCase(a=types[0], b=types[1], **fields),
        types=dtypes,
        m=st.sampled_from(rows),
        n=size,
        k=size,
        sizes=groups,
        out=st.sampled_from([None, "float32", "bfloat16"]),
        transpose_rhs=st.booleans(),
        bias=st.booleans(),
        activation=st.sampled_from(ACTIVATIONS),
        clamp=st.sampled_from(CLAMPS),
    )
    integers = st.builds(
        GroupedCase,
        m=st.sampled_from(rows),
        n=size,
        k=size,
        sizes=groups,
        a=st.just("int8"),
        b=st.just("int8"),
        transpose_rhs=st.booleans(),
    )
    return st.one_of(cases, cases, cases, integers)


def _check_grouped(case: GroupedCase, seed: int) -> None:
    operands = case.operands(seed)
    if case.a != "int8":
        # What no group needs must influence nothing.
        tail = oracle.group_rows(case.sizes, case.m)[-1].stop
        empty = np.asarray(case.sizes) == 0
        operands["lhs"] = operands["lhs"].at[tail:].set(jnp.nan)
        operands["rhs"] = jnp.where(empty[:, None, None], jnp.nan, operands["rhs"])
        operands["rhs"] = operands["rhs"].astype(case.b)
    result = case.run(operands)
    out = case.out or {"int8": "int32", "float8_e4m3fn": "bfloat16"}.get(case.a, case.b)
    oracle.check(result, case.answer(operands), out)
    used = min(case.m, sum(case.sizes))
    assert not np.asarray(result[used:], np.float32).any(), "rows of no group are exactly zero"


@settings(max_examples=45)
@given(_grouped_cases([0, 1, 5], [0, 1, 8, 20]), st.integers(0, 9))
def test_grouped_gemm_is_within_its_bound(case: GroupedCase, seed: int) -> None:
    _check_grouped(case, seed)


@pytest.mark.slow
@settings(max_examples=400)
@given(_grouped_cases(LARGE, [0, 1, 2, 8, 20, 64, 100, 600]), st.integers(0, 99))
def test_grouped_gemm_is_within_its_bound_in_a_longer_sweep(case: GroupedCase, seed: int) -> None:
    _check_grouped(case, seed)
