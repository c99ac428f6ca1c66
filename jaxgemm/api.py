"""The public operations. What a call means is worked out in `call.py`."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from jaxgemm import call, checks, dtypes

Scalar = ArrayLike
Precision = lax.Precision | str | None


def gemm(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None = None,
    *,
    alpha: Scalar = 1,
    beta: Scalar | None = None,
    bias: ArrayLike | None = None,
    activation: str | None = None,
    clamp: tuple[float | None, float | None] | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    out_dtype: DTypeLike | None = None,
    precision: Precision = None,
    backend: str = "auto",
    batch_invariant: bool = False,
    autodiff: Literal["vjp", "jvp"] = "vjp",
) -> jax.Array:
    """clamp(act(alpha · op(a)·op(b) + beta · c + bias)), rounded once.

    Everything after the product is in the accumulator dtype: float32, float64 if an operand is
    float64, int32 for int8 operands.

    Args:
      a: (..., m, k), or (..., k, m) with `transpose_a`; float64, float32, bfloat16, float16,
        float8_e4m3fn, float8_e5m2, or int8. Leading axes broadcast as in `jnp.matmul`; an
        operand that lacks one, or has size 1 there, is shared and not copied.
      b: (..., k, n), or (..., n, k) with `transpose_b`. Floats may be mixed.
      c: broadcastable to (..., m, n).
      alpha: scalar. A new value never recompiles and never changes the result dtype.
      beta: scalar; by default 1 with c. At 0, static or traced, c is not read: its NaN never show.
        Its own gradient is ⟨c, d_bar⟩ at 0 too, in which NaN and Inf of c do show.
      bias: (n,), added along n.
      activation: "relu", "gelu" (the tanh form), "gelu_exact", "silu", "sigmoid", "tanh",
        "relu2", or None. NaN passes through all of them.
      clamp: (low, high), between which the result is kept at the very end; either may be None.
        Numbers that are known when the call is traced. NaN passes. The derivative is 1 within
        the bounds, at them too, and 0 outside.
      transpose_a: a is stored as (..., k, m). Nothing is moved.
      transpose_b: b is stored as (..., n, k). Nothing is moved.
      out_dtype: by default what a and b promote to; int32 for int8, bfloat16 for 8-bit floats.
        A wider one is exact; a narrower one is rounded to once, as `astype` does.
      precision: for float32 operands; None follows `jax.default_matmul_precision`. "default" and
        "high" let a GPU use TF32, "highest" is true float32. The same in the backward pass.
      backend: "auto", or a kernel's name or its beginning, such as "pallas" or "xla".
      batch_invariant: the bits of a row do not depend on how many rows there are.
      autodiff: "vjp" has a hand-written backward pass (and no direct `jax.jvp`); "jvp" leaves
        differentiation to JAX's rules, in both modes.

    Returns:
      (..., m, n) of `out_dtype`.

    Raises:
      ValueError: shapes that do not fit, unknown names.
      TypeError: dtypes that do not fit.
      UnsupportedProblem: a named backend cannot run it; the message has each kernel's reason.

    Example:
      >>> import jax.numpy as jnp, jaxgemm
      >>> x, w, v = jnp.ones((4, 8)), jnp.ones((8, 16)), jnp.zeros(16)
      >>> jaxgemm.gemm(x, w, bias=v, activation="gelu").shape
      (4, 16)
    """
    operands = {"a": checks.check_array("a", a), "b": checks.check_array("b", b)}
    if c is not None:
        operands["c"] = checks.check_array("c", c)
    if bias is not None:
        operands["bias"] = checks.check_array("bias", bias)
    call.add_scalars(operands, alpha, beta)
    planned = call.of_gemm(
        checks.shaped(operands),
        0 if checks.check_flag("transpose_a", transpose_a) else 1,
        1 if checks.check_flag("transpose_b", transpose_b) else 0,
        call.options_of(activation, out_dtype, precision, batch_invariant, clamp),
    )
    if "c" in operands and operands["c"].shape[-2:] != planned.shape[-2:]:
        # In the accumulator dtype, so that the gradient for c is summed before it is rounded.
        acc = dtypes.accumulator(operands["a"].dtype, operands["b"].dtype)
        shape = (*operands["c"].shape[:-2], *planned.shape[-2:])
        operands["c"] = jnp.broadcast_to(operands["c"].astype(acc), shape)
    return call.evaluate(planned, operands, backend, autodiff)


def gated_gemm(
    x: ArrayLike,
    w_gate: ArrayLike,
    w_up: ArrayLike,
    *,
    activation: str | None = "silu",
    transpose_w: bool = False,
    out_dtype: DTypeLike | None = None,
    precision: Precision = None,
    backend: str = "auto",
    batch_invariant: bool = False,
    autodiff: Literal["vjp", "jvp"] = "vjp",
) -> jax.Array:
    """act(x·w_gate) · (x·w_up), rounded once; the weights are never concatenated.

    Args:
      x: (..., m, k).
      w_gate: (..., k, n), or (..., n, k) with `transpose_w`.
      w_up: the shape and dtype of w_gate.
      activation: as in `gemm`; "silu" makes it SwiGLU, "gelu" GeGLU, "sigmoid" GLU.
      transpose_w: both weights are stored as (..., n, k).
      out_dtype: as in `gemm`.
      precision: as in `gemm`.
      backend: as in `gemm`.
      batch_invariant: as in `gemm`.
      autodiff: as in `gemm`.

    Returns:
      (..., m, n) of `out_dtype`.

    Raises:
      ValueError: shapes that do not fit, unknown names.
      TypeError: dtypes that do not fit.
      UnsupportedProblem: a named backend cannot run it.

    Example:
      >>> import jax.numpy as jnp, jaxgemm
      >>> jaxgemm.gated_gemm(jnp.ones((4, 8)), jnp.ones((8, 16)), jnp.ones((8, 16))).shape
      (4, 16)
    """
    arrays = (("a", "x", x), ("b", "w_gate", w_gate), ("b_up", "w_up", w_up))
    operands = {role: checks.check_array(name, value) for role, name, value in arrays}
    planned = call.of_gated(
        checks.shaped(operands),
        1 if checks.check_flag("transpose_w", transpose_w) else 0,
        call.options_of(activation, out_dtype, precision, batch_invariant),
    )
    return call.evaluate(planned, operands, backend, autodiff)


def mlp(
    x: ArrayLike,
    w_up: ArrayLike,
    w_down: ArrayLike,
    *,
    bias_up: ArrayLike | None = None,
    bias_down: ArrayLike | None = None,
    activation: str | None = "gelu",
    out_dtype: DTypeLike | None = None,
    precision: Precision = None,
    backend: str = "auto",
) -> jax.Array:
    """act(x·w_up + bias_up)·w_down + bias_down: two calls of `gemm`, differentiated as one.

    The backward pass multiplies by the slope of the activation where it multiplies by w_down: what
    is between is not written to memory and not rounded.

    Args:
      x: (..., m, k).
      w_up: (k, hidden).
      w_down: (hidden, n).
      bias_up: (hidden,).
      bias_down: (n,).
      activation: as in `gemm`.
      out_dtype: as in `gemm`, of the result; act(…) has the default of x and w_up.
      precision: as in `gemm`, of all products.
      backend: as in `gemm`. In the backward pass XLA does what is beyond a named kernel.

    Returns:
      (..., m, n) of `out_dtype`.

    Raises:
      ValueError: shapes that do not fit, unknown names.
      TypeError: dtypes that do not fit; integers.
      UnsupportedProblem: a named backend cannot run one of the products.

    Example:
      >>> import jax, jax.numpy as jnp, jaxgemm
      >>> x, up, down = jnp.ones((4, 8)), jnp.ones((8, 32)), jnp.ones((32, 8))
      >>> jax.grad(lambda w: jaxgemm.mlp(x, w, down).sum())(up).shape
      (8, 32)
    """
    arrays = {"x": x, "w_up": w_up, "w_down": w_down, "bias_up": bias_up, "bias_down": bias_down}
    operands = {
        name: checks.check_array(name, value)
        for name, value in arrays.items()
        if value is not None or not name.startswith("bias")
    }
    up = call.options_of(activation, None, precision, False)
    down = call.options_of(None, out_dtype, precision, False)
    return call.evaluate_mlp(*call.of_mlp(checks.shaped(operands), up, down), operands, backend)


def grouped_gemm(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    *,
    bias: ArrayLike | None = None,
    activation: str | None = None,
    clamp: tuple[float | None, float | None] | None = None,
    transpose_rhs: bool = False,
    out_dtype: DTypeLike | None = None,
    precision: Precision = None,
    backend: str = "auto",
    batch_invariant: bool = False,
    autodiff: Literal["vjp", "jvp"] = "vjp",
) -> jax.Array:
    """clamp(act(lhs[rows of group g] · rhs[g] + bias[g])) for every group, rounded once.

    Rows of lhs are divided, in order, among the groups. Rows past the last group are exactly zero
    in the result and in the gradient for lhs, and what they hold influences nothing. An empty
    group's weights are not read and their gradient is exactly zero. Sizes that add up to more
    than m are clipped. Sizes stay on the device and a new distribution never recompiles.

    Args:
      lhs: (m, k).
      rhs: (g, k, n), or (g, n, k) with `transpose_rhs`.
      group_sizes: (g,) of any integer dtype: rows of each group.
      bias: (g, n).
      activation: as in `gemm`.
      clamp: as in `gemm`; rows past the last group stay zero.
      transpose_rhs: rhs is stored as (g, n, k).
      out_dtype: as in `gemm`.
      precision: as in `gemm`.
      backend: as in `gemm`.
      batch_invariant: as in `gemm`.
      autodiff: as in `gemm`.

    Returns:
      (m, n) of `out_dtype`.

    Raises:
      ValueError: shapes that do not fit, unknown names.
      TypeError: dtypes that do not fit.
      UnsupportedProblem: a named backend cannot run it.

    Example:
      >>> import jax.numpy as jnp, jaxgemm
      >>> x, w = jnp.ones((10, 8)), jnp.ones((3, 8, 16))
      >>> jaxgemm.grouped_gemm(x, w, jnp.array([4, 0, 5])).shape
      (10, 16)
    """
    operands = {"a": checks.check_array("lhs", lhs), "b": checks.check_array("rhs", rhs)}
    if bias is not None:
        operands["bias"] = checks.check_array("bias", bias)
    sizes = operands["group_sizes"] = checks.check_array("group_sizes", group_sizes)
    planned = call.of_grouped(
        checks.shaped(operands),
        1 if checks.check_flag("transpose_rhs", transpose_rhs) else 0,
        call.options_of(activation, out_dtype, precision, batch_invariant, clamp),
    )
    # Clipped before the cast: a size of 2^32 in a wide dtype must not come out as 0.
    sizes = jnp.clip(sizes, 0, min(planned.shape[0], jnp.iinfo(sizes.dtype).max))
    operands["group_sizes"] = sizes.astype(jnp.int32)
    return call.evaluate(planned, operands, backend, autodiff)
