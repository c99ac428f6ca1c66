"""The key of a choice: whatever changes a result or a policy is in it, and nothing else."""

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from jaxgemm import canonical
from jaxgemm.policy import Policy
from jaxgemm.problem import Problem
from tests import oracle
from tests.dispatch_fakes import equations, struct


def _keys(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[tuple[Problem, Policy]]:
    """What dispatch is asked for a call: for each of its products."""
    keys = []
    for equation in equations(function, *args, **kwargs):
        avals = [v.aval for v in equation.invars]
        problem = canonical.canonical(Problem.of(equation.params["spec"], avals))
        keys.append((problem, equation.params["policy"]))
    return keys


def _key(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Problem, Policy]:
    """What dispatch is asked for a call that is one product."""
    (key,) = _keys(function, *args, **kwargs)
    return key


_S, _W, _I = struct(8, 8), struct(4, 8, 8), struct(4, dtype="int32")
_HALF = jnp.float32(0.5)
# operation → its operands, and for every other argument a call that differs from them in it.
CALLS: dict[Callable[..., Any], tuple[tuple[Any, ...], dict[str, dict[str, Any]]]] = {
    jaxgemm.gemm: (
        (_S, _S),
        {
            "c": {"c": jnp.ones((8, 8))},
            "alpha": {"alpha": 0.5},
            "beta": {"c": jnp.ones((8, 8)), "beta": 0.5},
            "bias": {"bias": jnp.ones(8)},
            "activation": {"activation": "gelu"},
            "clamp": {"clamp": (0.0, 6.0)},
            "transpose_a": {"transpose_a": True},
            "transpose_b": {"transpose_b": True},
            "out_dtype": {"out_dtype": "float32"},
            "precision": {"precision": "highest"},
            "backend": {"backend": "xla"},
            "batch_invariant": {"batch_invariant": True},
        },
    ),
    jaxgemm.gated_gemm: (
        (_S, _S, _S),
        {
            "activation": {"activation": "gelu"},
            "transpose_w": {"transpose_w": True},
            "out_dtype": {"out_dtype": "float32"},
            "precision": {"precision": "highest"},
            "backend": {"backend": "xla"},
            "batch_invariant": {"batch_invariant": True},
        },
    ),
    jaxgemm.mlp: (
        (_S, _S, _S),
        {
            "bias_up": {"bias_up": jnp.ones(8)},
            "bias_down": {"bias_down": jnp.ones(8)},
            "activation": {"activation": "relu"},
            "out_dtype": {"out_dtype": "float32"},
            "precision": {"precision": "highest"},
            "backend": {"backend": "xla"},
        },
    ),
    jaxgemm.grouped_gemm: (
        (_S, _W, _I),
        {
            "bias": {"bias": jnp.ones((4, 8))},
            "activation": {"activation": "gelu"},
            "clamp": {"clamp": (0.0, 6.0)},
            "transpose_rhs": {"transpose_rhs": True},
            "out_dtype": {"out_dtype": "float32"},
            "precision": {"precision": "highest"},
            "backend": {"backend": "xla"},
            "batch_invariant": {"batch_invariant": True},
        },
    ),
}


def _name(function: Callable[..., Any]) -> str:
    return function.__name__


@pytest.mark.parametrize("function", CALLS, ids=_name)
def test_calls_that_differ_in_one_argument_have_different_keys(
    function: Callable[..., Any],
) -> None:
    operands, variants = CALLS[function]
    parameters = list(inspect.signature(function).parameters)[len(operands) :]
    # How a call is differentiated does not change which kernel computes it.
    assert set(parameters) - {"autodiff"} == variants.keys(), "name the new argument in CALLS"
    keys = {"": _keys(function, *operands)}
    keys |= {name: _keys(function, *operands, **kw) for name, kw in variants.items()}
    if function is jaxgemm.gemm:
        extra = {"c row": {"c": jnp.ones((1, 8))}, "bias dtype": {"bias": jnp.ones(8, "bfloat16")}}
        extra |= {f"activation {x}": {"activation": x} for x in ("relu", "silu", "gelu_exact")}
        extra |= {"c bf16": {"c": jnp.ones((8, 8), "bfloat16")}, "high": {"precision": "high"}}
        extra |= {f"clamp {x}": {"clamp": (x, None)} for x in (0.0, -1.0)}
        extra |= {"bias+relu": {"bias": jnp.ones(8), "activation": "relu"}}
        extra |= {"both": {"transpose_a": True, "transpose_b": True}}
        keys |= {name: _keys(function, *operands, **kw) for name, kw in extra.items()}
        # A row of c is laid out for every row of d, so it is a c like any other.
        assert keys.pop("c row") == keys["c"]
    for (one, first), (two, second) in itertools.combinations(keys.items(), 2):
        assert first != second, f"{one!r} and {two!r} share {first}"
    for autodiff in ("vjp", "jvp") if "autodiff" in parameters else ():
        assert _keys(function, *operands, autodiff=autodiff) == keys[""]


@pytest.mark.parametrize("function", [f for f in CALLS if f is not jaxgemm.mlp], ids=_name)
def test_operands_of_other_sizes_and_dtypes_have_different_keys(
    function: Callable[..., Any],
) -> None:
    operands, _ = CALLS[function]
    keys = {_key(function, *operands)}
    for dtype in ("float16", "float32", "float8_e4m3fn", "float8_e5m2", "int8"):
        changed = [x.update(dtype=jnp.dtype(dtype)) if x is not _I else x for x in operands]
        options = {"activation": None} if function is jaxgemm.gated_gemm else {}
        keys.add(_key(function, *changed, **options))
    for i in range(2):
        mixed = [
            x.update(dtype=jnp.dtype("float32")) if (i == 0) == (j == 0) and x is not _I else x
            for j, x in enumerate(operands)
        ]
        keys.add(_key(function, *mixed))
    keys.add(_key(function, struct(9, 8), *operands[1:]))
    assert len(keys) == 9


def test_values_of_scalars_and_group_sizes_are_not_in_the_key() -> None:
    keys = {_key(jaxgemm.gemm, _S, _S, alpha=alpha) for alpha in (0.5, 2, 0, np.float64(3), _HALF)}
    assert len(keys) == 1
    x, w = jnp.ones((8, 8), "bfloat16"), jnp.ones((4, 8, 8), "bfloat16")
    sizes = [jnp.array([1, 2, 3, 2]), jnp.array([0, 0, 0, 8])]
    assert len({_key(jaxgemm.grouped_gemm, x, w, s) for s in sizes}) == 1


def test_strictness_and_device_are_in_the_key() -> None:
    keys = set()
    for strict in (False, True):
        for name in ("nvidia_h200", "nvidia_b200"):
            with jaxgemm.use(strict=strict, device=name):
                keys.add(_key(jaxgemm.gemm, _S, _S))
    assert len(keys) == 4


def test_precision_of_the_surroundings_is_in_the_key_forward_and_backward() -> None:
    def loss(a: jax.Array, b: jax.Array) -> jax.Array:
        with jax.default_matmul_precision("highest"):
            return jaxgemm.gemm(a, b, activation="gelu").sum()

    x = struct(8, 8, dtype="float32")
    found = {e.params["spec"].precision for e in equations(jax.grad(loss, (0, 1)), x, x)}
    assert found == {"highest"}
    assert _key(jaxgemm.gemm, x, x)[0].spec.precision == "default"
    for name, promised in [("tensorfloat32", "high"), ("float32", "highest"), ("high", "high")]:
        with jax.default_matmul_precision(name):
            assert _key(jaxgemm.gemm, x, x)[0].spec.precision == promised


# JAX takes the names of algorithms as a default too; none may become something less exact.
@pytest.mark.parametrize(
    ("name", "promises"),
    [
        ("BF16_BF16_F32", ("default", "high", "highest")),
        ("TF32_TF32_F32", ("high", "highest")),
        ("BF16_BF16_F32_X3", ("highest",)),
        ("BF16_BF16_F32_X9", ("highest",)),
        ("F32_F32_F32", ("highest",)),
    ],
)
def test_algorithm_as_the_default_precision_is_followed(
    name: str, promises: tuple[str, ...]
) -> None:
    x = struct(8, 8, dtype="float32")
    with jax.default_matmul_precision(name):
        assert _key(jaxgemm.gemm, x, x)[0].spec.precision in promises


def test_calls_that_differ_in_one_argument_are_right_in_either_order() -> None:
    rng = np.random.default_rng(0)
    a, b, c = (jnp.asarray(rng.normal(size=(8, 8)), jnp.bfloat16) for _ in range(3))
    bias = jnp.asarray(rng.normal(size=8), jnp.float32)
    variants: list[dict[str, Any]] = [
        {},
        {"activation": "gelu"},
        {"bias": bias},
        {"bias": bias, "activation": "relu"},
        {"c": c, "beta": 0.5},
        {"out_dtype": "float32"},
        {"transpose_b": True},
        {"transpose_a": True},
        {"alpha": 3},
    ]
    for options in (*variants, *reversed(variants)):
        out = options.get("out_dtype", "bfloat16")
        meaning = {name: x for name, x in options.items() if name != "out_dtype"}
        oracle.check(jaxgemm.gemm(a, b, **options), oracle.gemm(a, b, **meaning), out)
