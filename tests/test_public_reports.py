"""The kinds of fault that GEMM libraries are known for, from public reports of them.

Each section is a kind: first the cases of the reports, in our own words and labelled with the
report's id, then the rule for the whole kind. `SOURCES` says where a report is. Right values come
from float64 loops or are exact; what is a choice of ours is stated where it is pinned.
"""

import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import NamedSharding, PartitionSpec
from jax.test_util import check_grads

import jaxgemm
from jaxgemm import dtypes
from tests import oracle

_JAX, _TORCH = "https://github.com/jax-ml/jax", "https://github.com/pytorch/pytorch"
_CUTLASS, _TRITON = "https://github.com/NVIDIA/cutlass", "https://github.com/triton-lang/triton"
SOURCES = {
    "EG02": "https://github.com/openxla/tokamax/pull/1016",
    "EG03": f"{_CUTLASS}/issues/2674",
    "EG07": "https://github.com/pytorch/torchtitan/pull/1166",
    "EG08": f"{_TORCH}/pull/192497",
    "EG09": "https://github.com/deepseek-ai/DeepGEMM/issues/20",
    "EG10": "https://github.com/meta-pytorch/MSLK/pull/158",
    "RT01": f"{_TORCH}/issues/193633",
    "RT04": "https://github.com/NVIDIA/TransformerEngine/pull/2912",
    "RT05": "https://github.com/pytorch/torchtitan/issues/1237",
    "RT06": "https://github.com/trymirai/lalamo/pull/310",
    "ED01": f"{_TORCH}/issues/31421",
    "ED03": "https://github.com/ml-explore/mlx/issues/2698",
    "ED04": "https://github.com/JuliaGPU/CUDA.jl/issues/2952",
    "ED05": f"{_TORCH}/pull/193850",
    "ED07": f"{_TRITON}/pull/7808",
    "BZ01": f"{_TORCH}/issues/187521",
    "BZ02": f"{_TORCH}/issues/96037",
    "BZ04": "https://github.com/Reference-LAPACK/lapack/issues/1077",
    "BZ06": f"{_TORCH}/issues/194442",
    "ET02": f"{_TRITON}/issues/934",
    "ET04": "https://github.com/AI-Hypercomputer/maxtext/issues/1183",
    "ET06": f"{_CUTLASS}/issues/3536",
    "ET10": "https://github.com/pytorch/helion/pull/2062",
    "ET14": "https://github.com/deepseek-ai/DeepGEMM/issues/165",
    "AL01": f"{_TORCH}/pull/76021",
    "AL02": f"{_CUTLASS}/issues/49",
    "AL04": f"{_CUTLASS}/issues/519",
    "AL06": "https://github.com/cupy/cupy/pull/5205",
    "AL07": "https://github.com/NVIDIA/Fuser/issues/3966",
    "AL09": "https://github.com/microsoft/onnxruntime/pull/16130",
    "AL10": f"{_JAX}/issues/304",
    "SL03": f"{_JAX}/issues/18361",
    "SL09": "https://github.com/marin-community/marin/issues/5394",
    "SL10": "https://github.com/tensorflow/tensorflow/issues/26969",
    "EP04": "https://github.com/openxla/xla/pull/23632",
    "EP05": f"{_CUTLASS}/issues/1145",
    "EP06": "https://github.com/flagos-ai/FlagGems/pull/553",
    "EP07": "https://github.com/mlc-ai/relax/pull/212",
    "EP08": f"{_TORCH}/pull/104061",
    "EP09": "https://github.com/FluxML/NNlib.jl/issues/509",
    "AP04": "https://github.com/jax-ml/ml_dtypes/issues/63",
    "AP05": f"{_TORCH}/issues/83863",
    "AP08": "https://github.com/thinking-machines-lab/batch_invariant_ops/issues/11",
    "PD01": f"{_JAX}/issues/14157",
    "PD03": f"{_JAX}/issues/11628",
    "ND01": f"{_TRITON}/issues/2296",
    "ND04": "https://github.com/jax-ml/ml_dtypes/issues/400",
    "ND05": f"{_JAX}/issues/4465",
    "ND06": "https://github.com/openxla/xla/pull/16072",
    "GD01": f"{_JAX}/issues/10818",
    "GD02": f"{_JAX}/issues/27144",
    "GD03": f"{_JAX}/issues/34330",
    "GD05": f"{_JAX}/issues/732",
    "GR01": f"{_JAX}/issues/16049",
    "GR02": "https://github.com/google-research/t5x/issues/351",
    "GR03": f"{_JAX}/issues/2912",
    "GR05": f"{_JAX}/pull/4595",
    "GR06": f"{_JAX}/issues/16614",
    "GR07": "https://github.com/tenstorrent/tt-metal/issues/53776",
    "GR10": f"{_JAX}/issues/1270",
    "VM01": f"{_JAX}/issues/17187",
    "VM02": f"{_JAX}/issues/23624",
    "VM03": f"{_JAX}/issues/5832",
    "VM04": "https://github.com/ROCm/hipBLASLt/pull/210",
    "VM05": f"{_JAX}/issues/9073",
    "VM07": "https://github.com/aredden/torch-cublas-hgemm/issues/1",
    "SH03": f"{_JAX}/issues/11941",
    "SH04": f"{_JAX}/issues/33403",
    "AT09": "https://github.com/meta-pytorch/MSLK/pull/392",
    "LI01": "https://github.com/cupy/cupy/issues/6214",
    "LI04": f"{_JAX}/issues/24023",
    "GC02": "https://github.com/deepseek-ai/DeepGEMM/issues/444",
    "GC04": f"{_JAX}/issues/26605",
    "JX01": f"{_JAX}/issues/25196",
    "JX04": "https://github.com/NVIDIA/TransformerEngine/pull/2680",
}
gemm, grouped_gemm = jaxgemm.gemm, jaxgemm.grouped_gemm
NAN, INF = np.nan, np.inf


def _labels(report: str, count: int) -> list[str]:
    return [f"{report} case {i}" for i in range(count)]


def _normal(*shape: int, dtype: Any = "float32", seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng((seed, *shape)).normal(size=shape), dtype)


def _integers(*shape: int, dtype: Any = "float32", seed: int = 0) -> jax.Array:
    """Small integers: products and sums of a few hundred of them are exact."""
    return jnp.asarray(np.random.default_rng((seed, *shape)).integers(-3, 4, shape), dtype)


def _same(got: Any, want: Any) -> None:
    """Asserts equality in value, with NaN equal to NaN, and in dtype if both are JAX arrays."""
    if isinstance(want, jax.Array):
        assert got.dtype == want.dtype
    np.testing.assert_array_equal(oracle.f64(got), oracle.f64(want))


# --- empty-group: a group of size 0 gives junk, mostly in the gradient for the weights.


@functools.partial(jax.jit, static_argnames="activation")
def _grouped_vjp(
    lhs: Any, rhs: Any, sizes: Any, cotangent: Any, activation: str | None = None
) -> tuple[Any, ...]:
    """The result, the gradient for lhs and that for rhs."""
    run = functools.partial(grouped_gemm, out_dtype=cotangent.dtype, activation=activation)
    out, pullback = jax.vjp(lambda lhs, rhs: run(lhs, rhs, sizes), lhs, rhs)
    return out, *pullback(cotangent)


def _check_groups(lhs: Any, rhs: Any, sizes: Any, cotangent: Any) -> None:
    """A grouped product and its gradients, group by group; NaN is put where nothing may look."""
    sizes = np.asarray(sizes, np.int32)
    lhs, rhs, cotangent = (np.array(x) for x in (lhs, rhs, cotangent))
    rows = oracle.group_rows(sizes, lhs.shape[0])
    used = rows[-1].stop
    lhs[used:], cotangent[used:], rhs[sizes == 0] = NAN, NAN, NAN
    out, d_lhs, d_rhs = (np.asarray(x) for x in _grouped_vjp(lhs, rhs, sizes, cotangent))
    assert (d_lhs.dtype, d_rhs.dtype) == (lhs.dtype, rhs.dtype)
    assert not np.any(oracle.f64(out[used:])), "rows of no group"
    assert not np.any(oracle.f64(d_lhs[used:])), "their gradient"
    idle = [g for g, part in enumerate(rows) if part.start == part.stop]
    assert not np.any(oracle.f64(d_rhs[idle])), "gradients for weights of groups without rows"
    assert not np.signbit(oracle.f64(d_rhs[idle])).any(), "which are +0"
    for g, part in enumerate(rows):
        if g in idle:
            continue
        x, bar = lhs[part], cotangent[part]
        oracle.check(out[part], oracle.gemm(x, rhs[g]), out.dtype)
        oracle.check(d_lhs[part], oracle.gemm(bar, rhs[g], transpose_b=True), lhs.dtype)
        oracle.check(d_rhs[g], oracle.gemm(x, bar, transpose_a=True), rhs.dtype)


def _draw_groups(m: int, k: int, n: int, g: int, dtype: str = "float32") -> tuple[Any, ...]:
    """lhs, rhs and a cotangent."""
    lhs, rhs = _normal(m, k, dtype=dtype), _normal(g, k, n, dtype=dtype)
    return lhs, rhs, _normal(m, n, seed=1)


@pytest.mark.parametrize("jitted", [False, True], ids=["EG08 eager", "EG08 jit"])
def test_grouped_product_of_no_rows_at_all(jitted: bool) -> None:
    lhs, rhs = jnp.ones((0, 256)), jnp.ones((4, 256, 224))
    sizes = jnp.zeros(4, jnp.int32)

    def both(lhs: jax.Array, rhs: jax.Array) -> tuple[Any, ...]:
        out, pullback = jax.vjp(lambda lhs, rhs: grouped_gemm(lhs, rhs, sizes), lhs, rhs)
        return out, *pullback(out)

    out, d_lhs, d_rhs = (jax.jit(both) if jitted else both)(lhs, rhs)
    assert (out.shape, d_lhs.shape) == ((0, 224), (0, 256))
    _same(d_rhs, np.zeros((4, 256, 224)))


# EG09: weights of experts that nobody was sent to must reach nobody.
@pytest.mark.parametrize(
    ("m", "k", "n", "sizes", "dtype"),
    [
        pytest.param(320, 256, 128, [128, 0, 192, 0], "bfloat16", id="EG09"),
        pytest.param(24, 64, 32, [8, 0, 8, 0], "bfloat16", id="EG02"),
        pytest.param(32, 16, 16, [0, 8, 8, 0, 16], "bfloat16", id="EG03"),
        pytest.param(64, 32, 16, [0, 13, 0, 40, 1, 0, 10] + [0] * 249, "bfloat16", id="EG10"),
    ],
)
def test_empty_groups_influence_nothing(
    m: int, k: int, n: int, sizes: list[int], dtype: str
) -> None:
    lhs, rhs, cotangent = _draw_groups(m, k, n, len(sizes), dtype)
    _check_groups(lhs, rhs, sizes, cotangent)


def test_all_rows_in_one_group_of_many() -> None:
    """EG07."""
    lhs, rhs, cotangent = _draw_groups(40, 16, 24, 64, "bfloat16")
    for g in (0, 17, 63):
        _check_groups(lhs, rhs, [40 * (i == g) for i in range(64)], cotangent)


@pytest.mark.parametrize("num_groups", [1, 2, 3, 4, 5])
def test_every_pattern_of_empty_groups(num_groups: int) -> None:
    lhs, rhs, cotangent = _draw_groups(23, 5, 7, num_groups)
    for pattern in itertools.product((False, True), repeat=num_groups):
        sizes = [(3, 1, 6, 2, 8)[i] * full for i, full in enumerate(pattern)]
        _check_groups(lhs, rhs, sizes, cotangent)


def test_many_random_groups_of_which_most_are_empty() -> None:
    rng = np.random.default_rng(0)
    lhs, rhs, cotangent = _draw_groups(300, 4, 6, 256)
    for _ in range(4):
        sizes = rng.integers(1, 12, 256) * (rng.random(256) < 0.1)
        _check_groups(lhs, rhs, sizes, cotangent)


@pytest.mark.parametrize("activation", [None, "sigmoid"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_no_groups_at_all(has_bias: bool, activation: str | None) -> None:
    operands = {"lhs": jnp.ones((5, 3)), "rhs": jnp.ones((0, 3, 2))}
    operands |= {"bias": jnp.ones((0, 2))} if has_bias else {}

    def run(operands: dict[str, jax.Array]) -> jax.Array:
        sizes = jnp.zeros(0, jnp.int32)
        return grouped_gemm(**operands, group_sizes=sizes, activation=activation)

    out, pullback = jax.vjp(run, operands)
    _same(out, np.zeros((5, 2)))
    for name, bar in pullback(jnp.ones((5, 2)))[0].items():
        _same(bar, jnp.zeros_like(operands[name]))


# --- ragged-tail: rows past the last group are junk, or leak.


def test_rows_of_no_group_are_zero_in_every_pass() -> None:
    """RT01: the second training step must not see what the first left in memory."""
    sizes, used = np.array([10, 0, 7, 20], np.int32), 37
    lhs = _normal(64, 32).at[used:].set(NAN)
    rhs, ones = _normal(4, 32, 16), jnp.ones((64, 16))
    passes = []
    for _ in range(2):
        passes.append(_grouped_vjp(lhs, rhs, sizes, ones))
        jnp.full((64, 32), NAN).block_until_ready()
    out, d_lhs, d_rhs = passes[0]
    for first, second in zip(*passes, strict=True):
        _same(first, second)
    _same(out[used:], np.zeros((27, 16)))
    _same(d_lhs[used:], np.zeros((27, 32)))
    _check_groups(lhs, rhs, sizes, ones)
    assert np.isfinite(d_rhs).all()


# RT04: sizes are data; a buffer for the worst case is not an error, nor are too many rows.
# We clip: the groups take what rows there are, in order.
def test_sizes_need_not_add_up_to_the_rows() -> None:
    """RT04."""
    lhs, rhs, cotangent = _draw_groups(48, 16, 8, 3)
    for sizes in ([5, 6, 7], [16, 20, 12], [40, 40, 0], [100, 1, 1], [0, 0, 0], [48, 0, 0]):
        _check_groups(lhs, rhs, sizes, cotangent)
    out = jax.jit(grouped_gemm)(lhs, rhs, jnp.array([40, 40, 0]))
    oracle.check(out[40:], oracle.gemm(lhs[40:], rhs[1]))


def test_sizes_may_add_up_to_more_than_32_bits_hold() -> None:
    m, num_groups = 65536, 32769
    assert m * num_groups > 2**31
    rhs = np.arange(1, num_groups + 1, dtype=np.float32)[:, None, None]
    out = grouped_gemm(np.ones((m, 1), np.float32), rhs, np.full(num_groups, m, np.int32))
    # The first group takes every row.
    _same(out, np.ones((m, 1)))


def test_padding_does_not_reach_a_second_product() -> None:
    """RT05: two layers with an activation between; the padding of the buffer is infinite."""
    sizes, used = jnp.array([3, 0, 9, 1]), 13
    x = _normal(40, 8)
    weights = _normal(4, 8, 12), _normal(4, 12, 8)

    def loss(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
        h = grouped_gemm(x, w1, sizes)
        return grouped_gemm(jax.nn.relu(h) * h, w2, sizes)[:used].sum()

    gradient = jax.jit(jax.grad(loss, (0, 1, 2)))
    padded = gradient(x.at[used:].set(INF), *weights)
    alone = gradient(x[:used], *weights)
    _same(padded[0][used:], np.zeros((27, 8)))
    for got, want in zip((padded[0][:used], *padded[1:]), alone, strict=True):
        assert np.isfinite(got).all()
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        pytest.param((5, 0, 11), "float32", id="RT06 f32"),
        pytest.param((5, 0, 11), "bfloat16", id="RT06 bf16"),
        pytest.param((5, 0, 11), "float16", id="RT06 f16"),
        pytest.param((16,), "float32", id="RT06 one group"),
    ],
)
def test_finite_tail_is_zeroed_too(sizes: tuple[int, ...], dtype: str) -> None:
    lhs, rhs, _ = _draw_groups(40, 8, 12, len(sizes), dtype)
    for run in (grouped_gemm, jax.jit(grouped_gemm)):
        out = np.asarray(run(lhs, rhs, np.asarray(sizes)))
        assert out.dtype == jnp.dtype(dtype)
        _same(out[16:], np.zeros((24, 12)))
        assert out[:16].all()


@pytest.mark.parametrize("activation", [None, "sigmoid"])
@pytest.mark.parametrize("sizes", [(4, 0, 9), (0, 0, 0), (20, 0, 0), (9, 30, 2), (7,)], ids=str)
def test_contents_of_the_tail_change_no_bit(sizes: tuple[int, ...], activation: str | None) -> None:
    lhs, rhs, cotangent = _draw_groups(20, 6, 5, len(sizes))
    used = oracle.group_rows(sizes, 20)[-1].stop
    results = []
    for junk in (0, NAN, INF, -INF, 1e38):
        lhs, cotangent = lhs.at[used:].set(junk), cotangent.at[used:].set(junk)
        results.append(_grouped_vjp(lhs, rhs, np.asarray(sizes, np.int32), cotangent, activation))
    for other in results[1:]:
        for got, want in zip(other, results[0], strict=True):
            assert np.asarray(got).tobytes() == np.asarray(want).tobytes()
    # Not sigmoid(0), which is a half.
    _same(results[0][0][used:], np.zeros((20 - used, 5)))


# --- empty-dim: a size of 0 is refused, or an early exit forgets part of the epilogue.


def test_empty_contraction_scales_c() -> None:
    """ED03."""
    a, b, c = jnp.ones((2, 0)), jnp.ones((0, 2)), jnp.ones((2, 2))
    _same(gemm(a, b, c, alpha=0, beta=2), np.full((2, 2), 2.0))
    _same(gemm(a, b, c, beta=-0.5), np.full((2, 2), -0.5))
    _same(gemm(a, b, c, beta=-0.5, activation="relu"), np.zeros((2, 2)))


def test_gradients_of_an_empty_contraction() -> None:
    """ED04."""
    c = _normal(3, 3)
    operands = {"a": jnp.ones((3, 0)), "b": jnp.ones((0, 3)), "c": c}
    operands |= {"beta": jnp.float32(1), "bias": jnp.zeros(3)}
    out, pullback = jax.vjp(lambda named: gemm(**named), operands)
    _same(out, c)
    (bars,) = pullback(jnp.ones((3, 3)))
    assert (bars["a"].shape, bars["b"].shape) == ((3, 0), (0, 3))
    _same(bars["c"], np.ones((3, 3)))
    _same(bars["bias"], np.full(3, 3.0))
    np.testing.assert_allclose(bars["beta"], np.asarray(c, np.float64).sum(), rtol=1e-5)


def test_empty_contraction_does_not_read_c_where_beta_is_zero() -> None:
    """ED05."""
    a, b, c = jnp.ones((2, 0)), jnp.ones((0, 2)), jnp.full((2, 2), NAN)
    for beta in (0, jnp.float32(0)):
        out, pullback = jax.vjp(lambda c, beta=beta: gemm(a, b, c, beta=beta), c)
        _same(out, np.zeros((2, 2)))
        _same(pullback(jnp.ones((2, 2)))[0], np.zeros((2, 2)))


def test_batch_of_empty_contractions_is_zero() -> None:
    """ED01."""
    for n in (1, 16, 70000):
        a, b = jnp.ones((10, 1, 0)), jnp.ones((10, 0, n))
        _same(jax.vmap(gemm)(a, b), np.zeros((10, 1, n)))


def test_gradient_of_no_rows_or_no_columns_is_zero_of_the_right_shape() -> None:
    """ED07."""
    run = functools.partial(gemm, activation="gelu")
    for m, n in ((0, 32), (8, 0)):
        a, b, bias = (jnp.ones(s, "bfloat16") for s in ((m, 64), (64, n), (n,)))
        out, pullback = jax.vjp(lambda a, b, v: run(a, b, bias=v), a, b, bias)
        assert out.shape == (m, n)
        for bar, operand in zip(pullback(out), (a, b, bias), strict=True):
            _same(bar, jnp.zeros_like(operand))


EMPTY = [
    sizes
    for sizes in itertools.product((0, 1, 5), (0, 1, 5), (0, 1, 5), (None, 0, 3))
    if 0 in sizes
]


@functools.partial(jax.jit, static_argnames="activation")
def _everything(operands: Any, cotangent: Any, activation: str | None) -> Any:
    """The result and every gradient, mapped over a batch if there is one."""

    def run(named: Any) -> jax.Array:
        call = functools.partial(gemm, activation=activation)
        single = lambda a, b, c: call(  # noqa: E731
            a, b, c, alpha=named["alpha"], beta=named["beta"], bias=named["bias"]
        )
        mapped = jax.vmap(single) if cotangent.ndim == 3 else single
        return mapped(named["a"], named["b"], named["c"])

    out, pullback = jax.vjp(run, operands)
    return out, pullback(cotangent)[0]


# Of the cross product every third by default.
@pytest.mark.parametrize(
    "index", [pytest.param(i, marks=[pytest.mark.slow] * bool(i % 3)) for i in range(len(EMPTY))]
)
def test_every_empty_size_has_its_epilogue_and_gradients(index: int) -> None:
    m, n, k, batch = EMPTY[index]
    activation = (None, "relu", "sigmoid")[index // 3 % 3]
    lead = () if batch is None else (batch,)
    shapes = {"a": (*lead, m, k), "b": (*lead, k, n), "c": (*lead, m, n), "bias": (n,)}
    operands = {name: _integers(*shape) for name, shape in shapes.items()}
    operands |= {"alpha": jnp.float32(2), "beta": jnp.float32(-3)}
    cotangent = jnp.ones((*lead, m, n))
    out, bars = _everything(operands, cotangent, activation)
    meaning = {"alpha": 2, "beta": -3, "bias": operands["bias"], "activation": activation}
    answer = oracle.gemm(operands["a"], operands["b"], operands["c"], **meaning)
    oracle.check(out, answer)
    z_bar = oracle.ACTIVATIONS[activation][1](answer.z)
    a, b, c = (oracle.f64(operands[name]) for name in "abc")
    want = {
        "a": 2 * z_bar @ b.swapaxes(-1, -2),
        "b": 2 * a.swapaxes(-1, -2) @ z_bar,
        "c": -3 * z_bar,
        "bias": z_bar.sum(tuple(range(z_bar.ndim - 1))),
        "alpha": (z_bar * (a @ b)).sum(),
        "beta": (z_bar * c).sum(),
    }
    for name, bar in bars.items():
        assert bar.dtype == operands[name].dtype
        np.testing.assert_allclose(bar, want[name], rtol=1e-5, atol=1e-5, err_msg=name)


# --- beta-alpha-zero: beta = 0 must mean that c is not read. alpha is ordinary multiplication.


@pytest.mark.parametrize(("m", "n"), [(1, 1), (64, 64), (65, 63)], ids=_labels("BZ01", 3))
def test_beta_zero_hides_nan_in_c(m: int, n: int) -> None:
    a, b = jnp.ones((m, 7)), jnp.ones((7, n))
    _same(gemm(a, b, jnp.full((m, n), NAN), beta=0), np.full((m, n), 7.0))


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (3, 9), (9, 1), (8, 8)], ids="BZ02 {0}".format)
def test_beta_zero_hides_nan_of_one_example_of_a_batch(size: tuple[int, int]) -> None:
    m, n = size
    a, b = _normal(3, m, 4), _normal(3, 4, n)
    c = _normal(3, m, n).at[2].set(NAN)
    plain = jax.vmap(gemm)(a, b)
    for beta in (0, jnp.float32(0)):
        got = jax.vmap(lambda a, b, c, beta=beta: gemm(a, b, c, beta=beta))(a, b, c)
        _same(got, plain)


def test_beta_zero_for_some_examples_of_a_batch_only() -> None:
    a, b, c = _normal(2, 3), _normal(3, 4), _normal(2, 4)
    cs = jnp.stack([jnp.full_like(c, NAN), c])
    got = jax.vmap(lambda c, beta: gemm(a, b, c, beta=beta))(cs, jnp.array([0.0, 2.0]))
    oracle.check(got[0], oracle.gemm(a, b))
    oracle.check(got[1], oracle.gemm(a, b, c, beta=2))


# To the bit. Operands are arguments: XLA would multiply constants itself, and round differently.
@pytest.mark.parametrize("beta", [0, 0.0, -0.0, np.float32(0), "array", "traced"], ids=repr)
def test_beta_zero_is_the_call_without_c(beta: Any) -> None:
    wrap = jax.jit if beta == "traced" else lambda f: f
    a, b = _normal(5, 7), _normal(7, 6)
    plain = wrap(lambda a, b: gemm(a, b, activation="relu"))(a, b)
    value = jnp.zeros(()) if beta in ("array", "traced") else beta

    def run(c: jax.Array, a: jax.Array, b: jax.Array, beta: Any) -> jax.Array:
        return gemm(a, b, c, beta=beta, activation="relu")

    for hidden in (NAN, INF, -INF, 1e-40):
        c = jnp.full((5, 6), hidden, jnp.float32)
        assert np.asarray(wrap(run)(c, a, b, value)).tobytes() == np.asarray(plain).tobytes()
        _same(wrap(jax.grad(_sum_of(run)))(c, a, b, value), jnp.zeros_like(c))


def _sum_of(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda *args, **kwargs: function(*args, **kwargs).sum()


def test_uninitialised_c_reaches_no_gradient() -> None:
    """BZ06."""
    a, b, c = _normal(6, 6), _normal(6, 6, seed=1), jnp.full((6, 6), NAN)
    loss = _sum_of(lambda a, b, c: gemm(a, b, c, beta=0))
    value, bars = jax.value_and_grad(loss, (0, 1, 2))(a, b, c)
    want_value, want = jax.value_and_grad(_sum_of(gemm), (0, 1))(a, b)
    _same(value, want_value)
    _same(bars[0], want[0])
    _same(bars[1], want[1])
    _same(bars[2], np.zeros((6, 6)))


# BZ04: the rule is that of arithmetic, not of BLAS: 0 · NaN is NaN, static or traced.
@pytest.mark.parametrize("alpha", [0, 0.0, np.float32(0), "array", "traced"], ids="BZ04 {0}".format)
def test_alpha_zero_multiplies(alpha: Any) -> None:
    a = jnp.ones((3, 3)).at[1, 2].set(NAN).at[2, 0].set(INF)
    b, c = jnp.ones((3, 2)), jnp.full((3, 2), 5.0)

    def run(alpha: Any) -> jax.Array:
        return gemm(a, b, c, alpha=alpha, beta=1)

    out = (
        jax.jit(run)(0.0)
        if alpha == "traced"
        else run(jnp.zeros(()) if alpha == "array" else alpha)
    )
    _same(out, np.array([[5, 5], [NAN, NAN], [NAN, NAN]]))


# --- edge-tile: sizes that are no multiples of a tile. tests/test_pallas_kernels.py does the same
# with kernels; here the public operations.


@pytest.mark.parametrize("k", [1, 63, 64, 65, 95, 96, 97], ids="ET04 {0}".format)
def test_one_row_a_group_for_any_depth(k: int) -> None:
    lhs, rhs = np.asarray(_normal(32, k)), np.asarray(_normal(32, k, 24))
    out = grouped_gemm(lhs, rhs, np.ones(32, np.int32))
    oracle.check(out, oracle.grouped(lhs, rhs, np.ones(32, int)))


@pytest.mark.parametrize("k", [1, 65, 100], ids="ET10 {0}".format)
def test_what_lies_beside_an_operand_is_not_read(k: int) -> None:
    frame = jnp.full((128, 128), NAN)
    inner = functools.partial(lax.dynamic_slice, start_indices=(3, 5))

    @jax.jit
    def run(a: jax.Array, b: jax.Array) -> list[jax.Array]:
        a, b = inner(a, slice_sizes=(40, k)), inner(b, slice_sizes=(k, 24))
        return [gemm(a, b), gemm(a.T, b.T, transpose_a=True, transpose_b=True)]

    a, b = _normal(40, k), _normal(k, 24, seed=1)
    framed = (frame.at[3 : 3 + x.shape[0], 5 : 5 + x.shape[1]].set(x) for x in (a, b))
    for out in run(*framed):
        oracle.check(out, oracle.gemm(a, b))


def test_outer_products_are_rounded_once() -> None:
    """ET02."""
    for m, n in ((1, 128), (128, 1)):
        a, b = _normal(m, 1, dtype="float16"), _normal(1, n, dtype="float16", seed=1)
        want = (oracle.f64(a) * oracle.f64(b)).astype(np.float16)
        _same(gemm(a, b), want)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"], ids="ET06 {0}".format)
def test_ones_count_the_depth(dtype: str) -> None:
    for k in (1, 31, 1024, 1055):
        out = gemm(jnp.ones((9, k), dtype), jnp.ones((k, 1), dtype), out_dtype="float32")
        _same(out, np.full((9, 1), float(k)))


# A row knows its number and a column its own, so a tile in a wrong place shows, to the bit.
@pytest.mark.parametrize(("m", "n"), [(1, 1), (7, 300), (129, 65), (513, 3)])
def test_coordinates_stay_where_they_are(m: int, n: int) -> None:
    rows, columns = np.arange(m, dtype=np.float32), np.arange(n, dtype=np.float32)
    a = np.stack([rows, np.ones_like(rows)], 1)
    b = np.stack([np.ones_like(columns), 1000 * columns])
    want = rows[:, None] + 1000 * columns
    _same(gemm(a, b), want)
    stacked = jax.vmap(lambda x: gemm(a, b, x, beta=1))(
        jnp.array([[[0.0]], [[0.5]]]) + jnp.zeros((m, n))
    )
    _same(stacked, np.stack([want, want + 0.5]))


@pytest.mark.parametrize("num_groups", [1, 3, 40])
def test_coordinates_stay_in_their_group(num_groups: int) -> None:
    m, n = 301, 5
    rng = np.random.default_rng(num_groups)
    lhs = np.stack([np.arange(m, dtype=np.float32), np.ones(m, np.float32)], 1)
    rhs = np.ones((num_groups, 2, n), np.float32)
    rhs[:, 1] = 1000 * np.arange(num_groups)[:, None]
    run = jax.jit(grouped_gemm)
    for _ in range(8):
        cuts = np.sort(rng.integers(0, m + 40, num_groups))
        sizes = np.diff([0, *cuts]).astype(np.int32)
        want = np.zeros((m, n))
        for g, rows in enumerate(oracle.group_rows(sizes, m)):
            want[rows] = lhs[rows, :1] + 1000 * g
        _same(run(lhs, rhs, sizes), want)


@pytest.mark.parametrize("sizes", [[1], [133], [1, 133, 7, 0, 2]], ids="ET14 {0}".format)
def test_weight_gradient_of_groups_of_odd_sizes(sizes: list[int]) -> None:
    _check_groups(*_with_sizes(_draw_groups(sum(sizes), 32, 24, len(sizes), "bfloat16"), sizes))


def _with_sizes(drawn: tuple[Any, ...], sizes: list[int]) -> tuple[Any, ...]:
    lhs, rhs, cotangent = drawn
    return lhs, rhs, sizes, cotangent


# --- alignment-layout: odd strides, slices, broadcasts, transposes, axes of size 1.


def test_stride_of_a_broadcast_or_single_axis_means_nothing() -> None:
    """AL06."""
    a0, b = _normal(3, 5), _normal(4, 5, 2)
    want = [oracle.gemm(a0, b[i]) for i in range(4)]
    for run in (jax.vmap(gemm), jax.jit(jax.vmap(gemm))):
        out = run(jnp.broadcast_to(a0, (4, 3, 5)), b)
        for i in range(4):
            oracle.check(out[i], want[i])
        out = run(jnp.expand_dims(a0.T.T, 0), b[:1])
        oracle.check(out[0], want[0])


def test_slices_and_transposes_before_the_product() -> None:
    """AL01, AL07."""
    x, w, bias = _normal(12, 97, dtype="float16"), _normal(41, 24, dtype="float16"), _normal(24)

    @jax.jit
    def run(x: jax.Array, w: jax.Array) -> dict[str, jax.Array]:
        part = x[:, 31:72]
        return {
            "sliced": gemm(part, w, bias=bias),
            "turned": gemm(w, part, transpose_a=True, transpose_b=True, bias=bias[:12]),
            "produced": gemm(part.T, w.T, transpose_a=True, transpose_b=True, bias=bias),
            "strided": gemm(part[::2, ::-1], w[::-1], bias=bias),
        }

    out, part = run(x, w), np.asarray(x)[:, 31:72]
    for name in ("sliced", "produced"):
        oracle.check(out[name], oracle.gemm(part, w, bias=bias), "float16")
    oracle.check(out["strided"], oracle.gemm(part[::2], w, bias=bias), "float16")
    turned = oracle.gemm(w, part, transpose_a=True, transpose_b=True, bias=bias[:12])
    oracle.check(out["turned"], turned, "float16")


# Any of the sizes 1 … 17; AL02 asks for 1 … 9, AL09 for a batch stride of 84 bytes.
ODD = [
    *np.random.default_rng(0).integers(1, 18, (10, 3)).tolist(), (2, 3, 4), (3, 3, 7), (1, 9, 1),
]  # fmt: skip


@pytest.mark.parametrize(("m", "n", "k"), ODD, ids=_labels("AL02", len(ODD)))
def test_odd_sizes_in_every_layout(m: int, n: int, k: int) -> None:
    dtype = ("float32", "bfloat16", "float16")[(m + n + k) % 3]
    a, b = _integers(2, m, k, dtype=dtype), _integers(2, k, n, dtype=dtype, seed=1)
    want = oracle.f64(a) @ oracle.f64(b)

    @jax.jit
    def run(a: jax.Array, b: jax.Array) -> dict[Any, jax.Array]:
        results = {}
        for ta, tb in itertools.product((False, True), repeat=2):
            left, right = a.mT if ta else a, b.mT if tb else b
            flags = {"transpose_a": ta, "transpose_b": tb, "out_dtype": "float32"}
            results[f"{ta} {tb}"] = gemm(left, right, **flags)
            results[f"{ta} {tb} mapped"] = jax.vmap(functools.partial(gemm, **flags))(left, right)
        return results

    for out in run(a, b).values():
        _same(out, want)


def test_groups_that_begin_on_odd_rows() -> None:
    """AL04."""
    sizes = [1, 3, 5, 7, 9, 2]
    for k, n in ((36, 36), (36, 40)):
        lhs, rhs, cotangent = _draw_groups(sum(sizes), k, n, len(sizes), "bfloat16")
        _check_groups(lhs, rhs, sizes, cotangent)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 6, 5), (6, 1, 5), (6, 5, 1)], ids=_labels("AL10", 3))
def test_gradients_with_one_row_column_or_term(m: int, n: int, k: int) -> None:
    a, b, bar = _normal(m, k), _normal(k, n), _normal(m, n, seed=1)
    out, pullback = jax.vjp(gemm, a, b)
    oracle.check(out, oracle.gemm(a, b))
    d_a, d_b = pullback(bar)
    oracle.check(d_a, oracle.gemm(bar, b, transpose_b=True))
    oracle.check(d_b, oracle.gemm(a, bar, transpose_a=True))


# --- size-limit: many small products; memory that grows with the number of groups.


def test_very_many_products_of_single_numbers() -> None:
    """SL10, SL03."""
    a, b = _normal(70001, 1, 1), _normal(70001, 1, 1, seed=1)
    _same(jax.vmap(gemm)(a, b), np.asarray(a) * np.asarray(b))
    a, b = (
        _integers(2, 33000, 2, 2, dtype="float16"),
        _integers(2, 33000, 2, 2, dtype="float16", seed=1),
    )
    _same(jax.vmap(jax.vmap(gemm))(a, b), oracle.f64(a) @ oracle.f64(b))


def test_memory_does_not_grow_with_the_number_of_groups() -> None:
    """SL09."""
    m, k, weights = 4096, 64, 128 * 64
    used = {}
    for g in (4, 64):
        n = weights // g
        lhs, rhs = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((m, k), (g, k, n)))
        sizes = jax.ShapeDtypeStruct((g,), jnp.int32)
        run = jax.value_and_grad(_sum_of(grouped_gemm), (0, 1))
        memory = jax.jit(run).lower(lhs, rhs, sizes).compile().memory_analysis()
        used[g] = memory.temp_size_in_bytes / (4 * (m * k + g * k * n + m * n))
    assert max(used.values()) < 4, used


# --- epilogue-order: what is added, to which axis, and when it is rounded.


def test_bias_runs_along_columns_of_any_shape() -> None:
    """EP04."""
    for m, n in ((40, 1), (1, 40), (5, 5)):
        a, b = _normal(m, 16, dtype="bfloat16"), _normal(16, n, dtype="bfloat16")
        bias = jnp.arange(n, dtype=jnp.bfloat16)
        oracle.check(gemm(a, b, bias=bias), oracle.gemm(a, b, bias=bias), "bfloat16")


def test_ones_of_everything_add_up() -> None:
    """EP05."""
    for m, n in ((128, 256), (256, 128)):
        a, b, c, bias = (jnp.ones(s) for s in ((m, 64), (64, n), (m, n), (n,)))
        _same(gemm(a, b, c, alpha=1, beta=1, bias=bias), np.full((m, n), 66.0))


def test_every_row_gets_its_own_row_of_c() -> None:
    """EP06."""
    a, b, c = _normal(3, 5), _normal(5, 4), jnp.arange(12.0).reshape(3, 4)
    oracle.check(gemm(a, b, c, beta=1), oracle.gemm(a, b, c, beta=1))


def test_every_example_gets_its_own_c() -> None:
    """EP07."""
    a, b, c, bias = _normal(2, 5, 7), _normal(7, 48), _normal(2, 5, 48), _normal(48)
    out = jax.vmap(lambda a, c: gemm(a, b, c, bias=bias))(a, c)
    for i in range(2):
        oracle.check(out[i], oracle.gemm(a[i], b, c[i], bias=bias))


# EP08: "gelu" is the tanh form, as jax.nn.gelu, and "gelu_exact" the one with erf, on every path.
@pytest.mark.parametrize(
    ("activation", "values"),
    [
        pytest.param("gelu", [-0.1588080, 1.9545977, -0.0036373], id="EP08 tanh"),
        pytest.param("gelu_exact", [-0.1586553, 1.9544997, -0.0040497], id="EP08 exact"),
    ],
)
def test_gelu_is_the_one_that_its_name_says(activation: str, values: list[float]) -> None:
    x, one = jnp.array([[-1.0], [2.0], [-3.0]]), jnp.ones((1, 1))
    want = np.array(values)[:, None]
    sizes = np.array([3], np.int32)
    paths: dict[str, Callable[..., jax.Array]] = {
        "gemm": functools.partial(gemm, activation=activation),
        "saved": lambda x, w: jax.vjp(functools.partial(gemm, activation=activation), x, w)[0],
        "jvp": lambda x, w: gemm(x, w, activation=activation, autodiff="jvp"),
        "grouped": lambda x, w: grouped_gemm(x, w[None], sizes, activation=activation),
        "gated": lambda x, w: jaxgemm.gated_gemm(
            jnp.concatenate([x, jnp.ones((3, 1))], 1),
            jnp.array([[1.0], [0.0]]),
            jnp.array([[0.0], [1.0]]),
            activation=activation,
        ),
        "invariant": lambda x, w: gemm(x, w, activation=activation, batch_invariant=True),
    }
    for path, run in paths.items():
        np.testing.assert_allclose(run(x, one), want, atol=1e-6, err_msg=path)


def test_relu_passes_nan_and_knows_infinities() -> None:
    """EP09."""
    a = jnp.ones((4, 3)).at[1].set(INF).at[2, 1].set(NAN).at[3].set(-INF)
    out = gemm(a, jnp.ones((3, 2)), activation="relu")
    _same(out, np.array([[3, 3], [INF, INF], [NAN, NAN], [0, 0]]))


# With integers everything is exact, so a term on the wrong side of alpha or a wrong axis shows.
@pytest.mark.parametrize(
    ("m", "n", "dtype"),
    [(3, 5, "float32"), *((4, 4, x) for x in ("float32", "bfloat16", "float16", "int8"))],
)
def test_algebra_of_the_epilogue_is_exact(m: int, n: int, dtype: str) -> None:
    a, b = _integers(m, 6, dtype=dtype), _integers(6, n, dtype=dtype, seed=1)
    addend = "int32" if dtype == "int8" else "float32"
    c = jnp.asarray(np.arange(m * n).reshape(m, n), addend)
    bias = jnp.asarray(100 * np.arange(1, n + 1), addend)
    out_dtype = "int32" if dtype == "int8" else "float32"
    product = oracle.f64(a) @ oracle.f64(b)

    def run(a: jax.Array, c: jax.Array) -> jax.Array:
        scalars = {"alpha": 2, "beta": -3}
        return gemm(a, b, c, bias=bias, activation="relu", out_dtype=out_dtype, **scalars)

    want = np.maximum(2 * product - 3 * oracle.f64(c) + oracle.f64(bias), 0)
    scanned = jax.jit(
        lambda: lax.scan(lambda _, x: (None, run(*x)), None, (a[None], c[None]))[1][0]
    )
    scaled = jax.jit(lambda: (run(a * 1, (c.T * 1).T) * 2 + 1 - 1) // 2)
    for got in (run(a, c), jax.jit(run)(a, c), scanned(), scaled()):
        assert got.dtype == jnp.dtype(out_dtype)
        _same(got, want)


# --- accumulate-precision: sums are kept in float32 and rounded once, at the very end.


def test_sum_of_ones_does_not_stall() -> None:
    """AP04, AP05."""
    for k, in_bf16 in ((20000, 19968), (1024, 1024), (4097, 4096), (257, 256)):
        a, b = jnp.ones((1, k), "bfloat16"), jnp.ones((k, 1), "bfloat16")
        _same(gemm(a, b, out_dtype="float32"), np.full((1, 1), float(k)))
        _same(gemm(a, b), np.full((1, 1), float(in_bf16)))
    square = jnp.ones((256, 1024), "bfloat16")
    _same(gemm(square, square, transpose_b=True), np.full((256, 256), 1024.0))


def test_wider_result_is_not_rounded_first() -> None:
    """AP08."""
    a, b = jnp.array([[256]], "bfloat16"), jnp.array([[258]], "bfloat16")
    for out in ("bfloat16", "float32"):
        _same(gemm(a, b, out_dtype=out), np.array([[66048.0]]))
    third = jnp.full((1, 3), 1 / 3, "bfloat16")
    out = gemm(third, third.T, out_dtype="float32")
    np.testing.assert_allclose(out, 0.33463669, rtol=1e-7)
    large = jnp.full((1, 64), 64, "float16")
    _same(gemm(large, large.T, out_dtype="float32"), np.array([[262144.0]]))


def test_partial_sums_may_exceed_the_range_of_the_result() -> None:
    a = jnp.concatenate([jnp.full((1, 600), 200.0), jnp.full((1, 600), -200.0)], 1)
    a = a.astype("float16").at[0, 0].set(201)
    out = gemm(a, jnp.ones((1200, 1), "float16"))
    _same(out, np.array([[1.0]]))


def test_bias_and_activation_come_before_the_one_rounding() -> None:
    # 256 + 1 is 256 in bfloat16; with the bias it is 2 · 129 = 258, which bfloat16 has.
    a, b = jnp.ones((1, 257), "bfloat16"), jnp.ones((257, 1), "bfloat16")
    _same(gemm(a, b, bias=jnp.ones(1, "bfloat16")), np.array([[258.0]]))
    sizes = np.array([1], np.int32)
    _same(grouped_gemm(a, b[None], sizes, bias=jnp.ones((1, 1), "bfloat16")), np.array([[258.0]]))


@pytest.mark.parametrize("shape", [(4099, 3), (3,), (1, 3), (4099, 1), ()], ids=str)
def test_gradient_of_a_broadcast_c_is_summed_before_it_is_rounded(shape: tuple[int, ...]) -> None:
    a, b, c = (jnp.ones(s, "bfloat16") for s in ((4099, 2), (2, 3), shape))
    bar = jax.jit(jax.grad(lambda c: gemm(a, b, c, out_dtype="float32").sum()))(c)
    _same(bar, jnp.full(shape, 4099 * 3 / c.size, "bfloat16"))


# --- precision-default: what precision is asked for is kept everywhere (a CPU is always exact).


def test_float32_is_float32_when_asked_for() -> None:
    """PD01."""
    a = jnp.array([[1.1111111, 2.2222222], [3.3333333, 4.4444444]])
    want = [[6.1728384, 13.580247], [13.580247, 30.864197]]
    np.testing.assert_allclose(gemm(a, a, transpose_b=True, precision="highest"), want, rtol=1e-6)
    with jax.default_matmul_precision("highest"):
        np.testing.assert_allclose(gemm(a, a, transpose_b=True), want, rtol=1e-6)


def test_jacobian_of_a_linear_map_is_its_matrix() -> None:
    """PD03."""
    matrix, x = _normal(10, 100), _normal(100)
    for transform, autodiff in ((jax.jacrev, "vjp"), (jax.jacrev, "jvp"), (jax.jacfwd, "jvp")):
        run = functools.partial(gemm, precision="highest", autodiff=autodiff)
        _same(transform(lambda x, run=run: run(matrix, x[:, None])[:, 0])(x), matrix)


# --- narrow-dtype: integers that wrap, casts that saturate.


def test_default_result_of_int8_is_int32() -> None:
    """ND01, ND05."""
    a, b = jnp.array([[100, -128], [127, 1]], "int8"), jnp.array([[100, 2], [-128, -128]], "int8")
    _same(gemm(a, b), jnp.array([[26384, 16584], [12572, 126]], "int32"))
    _same(gemm(a[:1, :1], b[:1, :1]), jnp.array([[10000]], "int32"))
    lowest = jnp.full((3, 999), -128, "int8")
    _same(gemm(lowest, lowest, transpose_b=True), np.full((3, 3), 999 * 128 * 128))
    out = grouped_gemm(lowest, lowest.T[None], np.array([2], np.int32))
    _same(out, jnp.full((3, 3), 999 * 128 * 128, "int32").at[2].set(0))


# ND04: a result that the 8-bit float cannot hold becomes what `astype` makes of it: NaN for
# e4m3fn, which has no infinity, and infinity for e5m2.
@pytest.mark.parametrize(
    ("dtype", "values", "stored"),
    [
        pytest.param(
            "float8_e4m3fn",
            [448, 464, 465, 1000, -1000],
            [448, 448, NAN, NAN, NAN],
            id="ND04 e4m3fn",
        ),
        pytest.param(
            "float8_e5m2", [57344, 61439, 1e5, -1e5], [57344, 57344, INF, -INF], id="ND04 e5m2"
        ),
    ],
)
def test_overflow_of_an_8_bit_float(dtype: str, values: list[float], stored: list[float]) -> None:
    a, one = jnp.array(values, jnp.float32)[:, None], jnp.ones((1, 1))
    _same(gemm(a, one, out_dtype=dtype)[:, 0], np.array(stored))
    _same(jax.jit(functools.partial(gemm, out_dtype=dtype))(a, one)[:, 0], np.array(stored))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_all_8_bit_floats_go_in_and_out(dtype: str) -> None:
    every = jnp.arange(256, dtype=jnp.uint8).view(dtype)[:, None]
    one = jnp.ones((1, 1), dtype)
    assert gemm(every, one).dtype == jnp.bfloat16
    _same(gemm(every, one, out_dtype="float32"), every.astype("float32"))
    _same(gemm(every, one, out_dtype=dtype), every)
    # Between two values the cast decides, and it is that of astype.
    between = every.astype("float32") * 1.03
    _same(gemm(between, jnp.ones((1, 1)), out_dtype=dtype), between.astype(dtype))


@pytest.mark.parametrize("out", ["bfloat16", "float16", "float32"], ids="ND06 {0}".format)
def test_every_pair_of_8_bit_floats_in_every_layout(out: str) -> None:
    kinds = ("float8_e4m3fn", "float8_e5m2")

    @jax.jit
    def run(operands: Any) -> Any:
        results = {}
        for left, right in itertools.product(kinds, repeat=2):
            for ta, tb in itertools.product((False, True), repeat=2):
                a, b = operands[f"a {left}"], operands[f"b {right}"]
                a, b = a.T if ta else a, b.T if tb else b
                d = gemm(a, b, transpose_a=ta, transpose_b=tb, out_dtype=out)
                results[f"{left} {right} {ta} {tb}"] = d
        return results

    operands = {
        f"{n} {kind}": _normal(8, 8, dtype=kind, seed=i)
        for i, n in enumerate("ab")
        for kind in kinds
    }
    for name, d in run(operands).items():
        left, right, *_ = name.split()
        oracle.check(d, oracle.gemm(operands[f"a {left}"], operands[f"b {right}"]), out)


# The support table of dtypes: what is in it has a result, what is not is one TypeError.
@pytest.mark.parametrize(
    "a", [*dtypes.OPERANDS, "int16", "int32", "uint8", "int4", "bool", "complex64", "float8_e4m3"]
)
def test_every_pair_of_dtypes_works_or_is_a_type_error(a: str) -> None:
    every = [*dtypes.OPERANDS, "int16", "uint8", "bool", "complex64"]
    with jax.enable_x64(True):
        for b in every:
            left, right = (jax.ShapeDtypeStruct((2, 2), jnp.dtype(x)) for x in (a, b))
            supported = {a, b} <= dtypes.OPERANDS.keys() and (a == "int8") == (b == "int8")
            if not supported:
                with pytest.raises(TypeError, match=r"^[ab]: dtype \w+ "):
                    jax.eval_shape(gemm, left, right)
                continue
            wide = {x for x in (a, b) if not x.startswith("float8")} or {"bfloat16"}
            want = jnp.int32 if a == "int8" else functools.reduce(jnp.promote_types, wide)
            assert jax.eval_shape(gemm, left, right).dtype == want


# --- grad-dtype: a gradient has the dtype of its primal, whatever else is wider.


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"], ids="GD01 {0}".format)
def test_gradient_of_a_wider_result_has_the_operands_dtype(dtype: str) -> None:
    a, b = jnp.ones((3, 4), dtype), jnp.ones((4, 5), dtype)
    d_a, d_b = jax.grad(_sum_of(functools.partial(gemm, out_dtype="float32")), (0, 1))(a, b)
    _same(d_a, jnp.full((3, 4), 5, dtype))
    _same(d_b, jnp.full((4, 5), 3, dtype))


def test_narrow_carry_of_a_scan_stays_narrow() -> None:
    """GD02."""
    x, w = _normal(4, 4, dtype="bfloat16"), _normal(4, 4, dtype="bfloat16", seed=1) / 2

    def scanned(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.scan(lambda x, _: (gemm(x, w), None), x, None, length=3)[0].sum()

    def unrolled(x: jax.Array, w: jax.Array) -> jax.Array:
        return gemm(gemm(gemm(x, w), w), w).sum()

    got, want = (jax.jit(jax.grad(f, (0, 1)))(x, w) for f in (scanned, unrolled))
    for bar, other in zip(got, want, strict=True):
        assert bar.dtype == jnp.bfloat16
        # Three bfloat16 gradients are added in another order.
        np.testing.assert_allclose(oracle.f64(bar), oracle.f64(other), rtol=0.05, atol=0.05)


def test_gradient_for_a_wide_operand_is_not_rounded_to_the_narrow_one() -> None:
    """GD03."""
    a, w = _normal(512, 4, dtype="bfloat16"), _normal(4, 5)
    bar = _normal(512, 5, dtype="bfloat16") * jnp.where(jnp.arange(512) % 2, 1e-3, 1e3)[:, None]
    bar = bar.astype("bfloat16")
    _, pullback = jax.vjp(functools.partial(gemm, out_dtype="bfloat16"), a, w)
    d_a, d_w = pullback(bar)
    oracle.check(d_w, oracle.gemm(a, bar, transpose_a=True), "float32")
    oracle.check(d_a, oracle.gemm(bar, w, transpose_b=True), "bfloat16")


@pytest.mark.parametrize("scalar", [0.1, np.float64(0.1), np.float32(0.1)], ids="GD05 {0!r}".format)
def test_scalars_widen_nothing_in_64_bit_mode(scalar: Any) -> None:
    with jax.enable_x64(True):
        a, b, c = (_normal(3, 3, seed=i) for i in range(3))
        assert a.dtype == jnp.float32

        def run(a: jax.Array, b: jax.Array, s: Any) -> jax.Array:
            return gemm(a, b, c, alpha=s, beta=s)

        eager, jitted = run(a, b, scalar), jax.jit(run)(a, b, scalar)
        assert eager.dtype == jitted.dtype == jnp.float32
        assert not eager.weak_type
        np.testing.assert_allclose(eager, jitted, rtol=1e-6)
        traced = jnp.asarray(scalar)
        bars = jax.grad(_sum_of(run), (0, 1, 2))(a, b, traced)
        assert [bar.dtype for bar in bars] == [jnp.float32, jnp.float32, traced.dtype]
        want = oracle.f64(gemm(a, b)).sum() + oracle.f64(c).sum()
        np.testing.assert_allclose(bars[2], want, rtol=1e-5)


FLOAT_DTYPES = ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("a", FLOAT_DTYPES)
def test_dtypes_of_results_and_gradients_follow_one_rule(a: str, x64: bool) -> None:
    # Shapes alone, so that every pair is cheap.
    traced = jax.ShapeDtypeStruct((), jnp.dtype("float64" if x64 else "float32"))
    others = itertools.cycle([(2.0, "float32"), (np.float64(2), "bfloat16"), (traced, "float16")])
    with jax.enable_x64(x64):
        for b, out in itertools.product(FLOAT_DTYPES, [None, "float32", "float8_e4m3fn"]):
            scalar, addend = next(others)
            shapes = {"a": (2, 3), "b": (3, 4), "c": (2, 4), "bias": (4,)}
            kinds = {"a": a, "b": b, "c": addend, "bias": addend}
            named = {n: jax.ShapeDtypeStruct(s, jnp.dtype(kinds[n])) for n, s in shapes.items()}

            def run(named: Any, s: Any, out: Any = out) -> jax.Array:
                return gemm(**named, alpha=s, beta=s, activation="silu", out_dtype=out)

            wide = [x for x in (a, b) if not x.startswith("float8")] or ["bfloat16"]
            default = functools.reduce(jnp.promote_types, wide)
            out_and_bars = jax.eval_shape(
                lambda named, s, run=run: (
                    run(named, s),
                    jax.grad(lambda named: run(named, s).astype(jnp.float32).sum())(named),
                ),
                named,
                scalar,
            )
            shaped, bars = out_and_bars
            assert (shaped.dtype, shaped.weak_type) == (jnp.dtype(out or default), False)
            assert {n: x.dtype for n, x in bars.items()} == {n: x.dtype for n, x in named.items()}


# --- grad-rule: holes in a custom rule.


def test_hessian_by_both_orders_of_modes() -> None:
    """GR01."""
    b = _normal(3, 4)
    want = 2 * np.einsum("ik,jn,ln->ijkl", np.eye(2), b, b)
    loss = lambda x: (gemm(x, b) ** 2).sum()  # noqa: E731
    for hessian in (jax.hessian, lambda f: jax.jacrev(jax.jacrev(f))):
        np.testing.assert_allclose(hessian(loss)(jnp.ones((2, 3))), want, rtol=1e-5, atol=1e-5)


def _plain(
    a: Any, b: Any, c: Any = None, *, alpha: Any = 1.0, beta: Any = 1.0, bias: Any = None
) -> Any:
    """The same in jnp, with gelu."""
    z = alpha * (a @ b)
    z = z if c is None else z + beta * c
    return jax.nn.gelu(z if bias is None else z + bias)


# GR02: direct forward mode is refused with JAX's own error, and `autodiff="jvp"` is the way out.
def test_forward_mode_is_refused_or_right() -> None:
    """GR02."""
    a, b, c, bias = _normal(2, 3), _normal(3, 4), _normal(2, 4), _normal(4)
    dots = _normal(2, 3, seed=1), _normal(3, 4, seed=1)
    options = {"alpha": 2.0, "beta": 0.5, "bias": bias}

    def run(a: jax.Array, b: jax.Array, autodiff: Any) -> jax.Array:
        return gemm(a, b, c, **options, activation="gelu", autodiff=autodiff)

    refused = functools.partial(run, autodiff="vjp")
    with pytest.raises(TypeError, match="forward-mode autodiff"):
        jax.jvp(refused, (a, b), dots)
    _, push = jax.linearize(refused, a, b)
    with pytest.raises(TypeError, match="forward-mode autodiff"):
        push(*dots)
    allowed = functools.partial(run, autodiff="jvp")
    want = jax.jvp(lambda a, b: _plain(a, b, c, **options), (a, b), dots)
    out, push = jax.linearize(allowed, a, b)
    for got in (jax.jvp(allowed, (a, b), dots), (out, push(*dots))):
        for x, y in zip(got, want, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    for got, y in zip(
        jax.grad(_sum_of(allowed), (0, 1))(a, b),
        jax.grad(_sum_of(refused), (0, 1))(a, b),
        strict=True,
    ):
        np.testing.assert_allclose(got, y, rtol=1e-5, atol=1e-5)


def test_traced_scalars_leak_no_tracers() -> None:
    """GR03."""
    a, b = _integers(3, 4), _integers(4, 5, seed=1)
    total = oracle.f64(a) @ oracle.f64(b)
    loss = lambda a, s: gemm(a, b, alpha=s).sum()  # noqa: E731
    d_a, d_s = jax.jit(jax.grad(loss, (0, 1)))(a, 0.5)
    _same(d_a, np.broadcast_to(0.5 * oracle.f64(b).sum(1), (3, 4)))
    _same(d_s, total.sum())

    def scanned(s: jax.Array) -> jax.Array:
        step = lambda s, _: (s * 2, gemm(a, b, alpha=s).sum())  # noqa: E731
        return lax.scan(step, s, None, length=3)[1].sum()

    _same(jax.jit(jax.grad(scanned))(0.5), (1 + 2 + 4) * total.sum())
    scales = jnp.array([0.0, 1.0, -2.0])
    _same(
        jax.vmap(lambda s: gemm(a, b, alpha=s))(scales), np.asarray(scales)[:, None, None] * total
    )
    _same(jax.vmap(jax.grad(loss, 1), (None, 0))(a, scales), np.full(3, total.sum()))


@pytest.mark.parametrize(
    ("has_c", "has_bias", "activation"),
    [(True, True, None), *((c, bias, "gelu") for c in (False, True) for bias in (False, True))],
    ids=_labels("GR05", 5),
)
def test_each_operand_is_differentiated_alone_and_with_others(
    has_c: bool, has_bias: bool, activation: str | None
) -> None:
    operands = {"a": _normal(2, 3), "b": _normal(3, 4), "alpha": jnp.float32(1.5)}
    operands |= {"c": _normal(2, 4, seed=1), "beta": jnp.float32(-0.5)} if has_c else {}
    operands |= {"bias": _normal(4)} if has_bias else {}
    weights = _normal(2, 4, seed=2)
    plain = oracle.gemm(**operands, activation=activation)
    z_bar = oracle.f64(weights) * oracle.ACTIVATIONS[activation][1](plain.z)
    a, b = oracle.f64(operands["a"]), oracle.f64(operands["b"])
    want = {"a": 1.5 * z_bar @ b.T, "b": 1.5 * a.T @ z_bar, "alpha": (z_bar * (a @ b)).sum()}
    want |= {"bias": z_bar.sum(0), "c": -0.5 * z_bar}
    want |= {"beta": (z_bar * oracle.f64(operands["c"])).sum()} if has_c else {}

    def loss(moving: dict[str, Any], fixed: dict[str, Any]) -> jax.Array:
        return (weights * gemm(**moving, **fixed, activation=activation)).sum()

    @jax.jit
    def gradients(operands: dict[str, Any]) -> list[dict[str, Any]]:
        chosen = [*({name} for name in operands), operands.keys(), operands.keys() - {"b"}]
        moving = [{name: operands[name] for name in names} for names in chosen]
        return [jax.grad(loss)(x, {n: operands[n] for n in operands.keys() - x}) for x in moving]

    results = gradients(operands)
    assert len(results) == len(operands) + 2
    for name, bar in ((name, bar) for bars in results for name, bar in bars.items()):
        assert (bar.shape, bar.dtype) == (operands[name].shape, operands[name].dtype)
        np.testing.assert_allclose(bar, want[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_one_operand_at_a_time_inside_a_scan() -> None:
    """GR06."""
    operands = {"x": _normal(3, 3), "w": _normal(3, 3, seed=1) / 2, "v": _normal(3)}

    def scanned(named: dict[str, Any]) -> jax.Array:
        step = lambda x, _: (gemm(x, named["w"], bias=named["v"]), None)  # noqa: E731
        return lax.scan(step, named["x"], None, length=4)[0].sum()

    def unrolled(named: dict[str, Any]) -> jax.Array:
        x = named["x"]
        for _ in range(4):
            x = x @ named["w"] + named["v"]
        return x.sum()

    want = jax.grad(unrolled)(operands)
    for name, x in operands.items():
        got = jax.jit(jax.grad(lambda x, name=name: scanned({**operands, name: x})))(x)
        np.testing.assert_allclose(got, want[name], rtol=1e-5, atol=1e-5)


JAX_ACTIVATIONS: dict[str | None, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "gelu_exact": functools.partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "relu2": lambda x: jax.nn.relu(x) ** 2,
}


@pytest.mark.parametrize("activation", JAX_ACTIVATIONS, ids="GR07 {0}".format)
def test_derivative_is_that_of_the_same_variant(activation: str) -> None:
    x, one = jnp.array([[-3.0], [-1.0], [-0.5], [0.0], [0.5], [2.0]]), jnp.ones((1, 1))
    want = jax.grad(_sum_of(JAX_ACTIVATIONS[activation]))(x)
    for autodiff in ("vjp", "jvp"):
        run = functools.partial(gemm, activation=activation, autodiff=autodiff)
        np.testing.assert_allclose(jax.grad(_sum_of(run))(x, one), want, atol=1e-6)
    with jax.enable_x64(True):
        run = functools.partial(gemm, activation=activation)
        wide, step = jnp.asarray(x, jnp.float64), 1e-6
        bar = jax.grad(_sum_of(run))(wide, one.astype(jnp.float64))
        difference = (run(wide + step, one) - run(wide - step, one)) / (2 * step)
        smooth = np.asarray(x) != 0 if activation == "relu" else np.ones(x.shape, bool)
        np.testing.assert_allclose(
            np.asarray(bar)[smooth], np.asarray(difference)[smooth], atol=1e-6
        )


def test_keyword_operands_are_differentiable() -> None:
    """GR10."""
    a, b, c, bias = _normal(2, 3), _normal(4, 3), _normal(2, 4), _normal(4)
    options = {"alpha": 2.0, "beta": 0.5, "activation": "relu", "transpose_b": True}
    options |= {"out_dtype": jnp.float32}
    keyword = lambda a: gemm(a, b, c=c, bias=bias, **options).sum()  # noqa: E731
    partial = functools.partial(gemm, b=b, c=c, bias=bias, **options)
    plain = lambda a: jax.nn.relu(2 * a @ b.T + 0.5 * c + bias).sum()  # noqa: E731
    want = jax.grad(plain)(a)
    for f in (keyword, _sum_of(partial)):
        np.testing.assert_allclose(jax.grad(f)(a), want, rtol=1e-6)
    named = jax.grad(lambda v: gemm(a, b, c=c, bias=v, **options).sum())(bias)
    again = jax.grad(lambda v: jax.nn.relu(2 * a @ b.T + 0.5 * c + v).sum())(bias)
    np.testing.assert_allclose(named, again, rtol=1e-6)


# (operands that are differentiated, activation, layout): second order in reverse, by differences.
CHECKED = [
    (("a", "b", "c", "bias", "alpha", "beta"), "silu", "NT"),
    (("b", "bias"), "tanh", "TN"),
    (("a", "c"), None, "TT"),
]


@pytest.mark.parametrize(("wanted", "activation", "layout"), CHECKED, ids=str)
def test_second_derivatives_agree_with_differences(
    wanted: tuple[str, ...], activation: str | None, layout: str
) -> None:
    with jax.enable_x64(True):
        operands = {"a": _normal(2, 3, dtype="float64"), "b": _normal(3, 4, dtype="float64")}
        operands |= {"c": _normal(2, 4, dtype="float64"), "bias": _normal(4, dtype="float64")}
        operands |= {"alpha": jnp.float64(0.7), "beta": jnp.float64(-0.4)}
        flags = {f"transpose_{x}": t == "T" for x, t in zip("ab", layout, strict=True)}
        for name in "ab":
            operands[name] = operands[name].T if flags[f"transpose_{name}"] else operands[name]
        fixed = {name: x for name, x in operands.items() if name not in wanted}

        def run(moving: dict[str, Any]) -> jax.Array:
            return gemm(**moving, **fixed, **flags, activation=activation)

        moving = {name: operands[name] for name in wanted}
        check_grads(jax.jit(run), (moving,), order=2, modes=["rev"], rtol=1e-4, atol=1e-4)


# --- vmap-rule: operands that are mapped alone, along other axes, at several levels. More of it is
# in tests/test_properties.py.


def test_nested_maps_over_different_operands() -> None:
    """VM01."""
    a, b = _integers(8, 4, 2), _integers(5, 2, 3, seed=1)
    want = np.einsum("imk,jkn->ijmn", oracle.f64(a), oracle.f64(b))
    _same(jax.vmap(jax.vmap(gemm, (None, 0)), (0, None))(a, b), want)
    _same(jax.vmap(jax.vmap(gemm, (0, None)), (None, 0))(a, b), want.swapaxes(0, 1))


def test_nested_maps_with_unmapped_addends() -> None:
    """VM02."""
    a, b = _integers(2, 3, 4), _integers(5, 4, 3, seed=1)
    c, bias = _integers(3, 3), _integers(3)
    call = lambda a, b, c, v: gemm(a, b, c, bias=v)  # noqa: E731
    inner = jax.vmap(call, (0, None, None, None))
    product = np.einsum("imk,jkn->jimn", oracle.f64(a), oracle.f64(b))
    got = jax.vmap(inner, (None, 0, None, None))(a, b, c, bias)
    _same(got, product + oracle.f64(c) + oracle.f64(bias))
    cs, biases = _integers(5, 3, 3), _integers(2, 3)
    inner = jax.vmap(call, (0, None, None, 0))
    got = jax.vmap(inner, (None, 0, 0, None))(a, b, cs, biases)
    _same(got, product + oracle.f64(cs)[:, None] + oracle.f64(biases)[None, :, None])


def test_gradient_of_shared_weights_under_map_and_scan() -> None:
    """VM03."""
    a, w = _normal(6, 3, 3), _normal(3, 3) / 2

    def each(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.scan(lambda x, _: (gemm(x, w), None), x, None, length=2)[0]

    _, pullback = jax.vjp(lambda w: jax.vmap(lambda x: each(x, w))(a), w)
    (bar,) = pullback(jnp.ones((6, 3, 3)))
    assert bar.shape == w.shape
    want = sum(jax.grad(lambda w, x=x: (x @ w @ w).sum())(w) for x in a)
    np.testing.assert_allclose(bar, want, rtol=1e-5, atol=1e-5)


IN_AXES = [axes for axes in itertools.product((None, 0, 1, 2), repeat=2) if axes != (None, None)]


def test_every_axis_of_either_operand() -> None:
    """VM05: the value, and both gradients, for each of the pairs of axes."""
    core = {"a": _integers(6, 3, 4), "b": _integers(6, 4, 5, seed=1)}
    weights = _integers(3, 6, 5, seed=2)

    @jax.jit
    def run(core: dict[str, jax.Array]) -> dict[str, Any]:
        results = {}
        for axes in IN_AXES:
            named = zip(core.values(), axes, strict=True)
            xs = [x[0] if axis is None else jnp.moveaxis(x, 0, axis) for x, axis in named]
            call = jax.vmap(gemm, axes, out_axes=1)
            loss = lambda a, b, call=call: (weights * call(a, b)).sum()  # noqa: E731
            results[str(axes)] = call(*xs), jax.grad(loss, (0, 1))(*xs)
        return results

    a, b, w = (oracle.f64(x) for x in (*core.values(), weights))
    results = run(core)
    for axes in IN_AXES:
        out, bars = results[str(axes)]
        left, right = (
            x[:1].repeat(6, 0) if axis is None else x for x, axis in zip((a, b), axes, strict=True)
        )
        _same(out, np.moveaxis(left @ right, 0, 1))
        bar = np.moveaxis(w, 1, 0)
        want = bar @ right.swapaxes(1, 2), left.swapaxes(1, 2) @ bar
        for got, each, axis in zip(bars, want, axes, strict=True):
            _same(got, each.sum(0) if axis is None else np.moveaxis(each, 0, axis))


def test_a_batch_of_one_is_not_special() -> None:
    """VM07, AL09."""
    b = _normal(32, 16, dtype="float16")
    for size in (1, 4):
        a = _normal(size, 8, 32, dtype="float16")
        out = jax.vmap(gemm, (0, None))(a, b)
        turned = jax.vmap(lambda x: gemm(b, x, transpose_a=True, transpose_b=True))(a)
        for i in range(size):
            oracle.check(out[i], oracle.gemm(a[i], b), "float16")
            oracle.check(turned[i].T, oracle.gemm(a[i], b), "float16")
    a, b = _normal(5, 3, 7), _normal(5, 7, 3)
    oracle.check(jax.vmap(gemm)(a, b), oracle.gemm(a, b))


def _derivatives(run: Callable[..., jax.Array], axes: Any, first: Any, args: Any) -> Any:
    """A mapped function, derivatives for some arguments, and derivatives of these."""
    mapped = jax.vmap(run, axes)

    def bars(*args: Any) -> Any:
        return jax.grad(lambda *xs: (mapped(*xs) ** 2).sum(), first)(*args)

    def squares(*args: Any) -> Any:
        return sum((x**2).sum() for x in bars(*args))

    return mapped(*args), bars(*args), jax.grad(squares, first)(*args)


def _assert_same_derivatives(run: Any, plain: Any, axes: Any, first: Any, args: Any) -> None:
    got, want = (
        jax.tree.leaves(jax.jit(functools.partial(_derivatives, f, axes, first))(args))
        for f in (run, plain)
    )
    for x, right in zip(got, want, strict=True):
        assert (x.shape, x.dtype) == (right.shape, right.dtype)
        np.testing.assert_allclose(x, right, rtol=1e-4, atol=1e-4 * float(jnp.abs(right).max()))


@pytest.mark.parametrize("mapped", ["bias", "alpha", "c", "beta", "a bias"], ids="VM04 {0}".format)
@pytest.mark.parametrize("autodiff", ["vjp", "jvp"])
def test_every_example_has_its_own_addend_or_scalar(mapped: str, autodiff: Any) -> None:
    operands: dict[str, Any] = {"a": _normal(2, 3), "b": _normal(3, 7), "c": _normal(2, 7)}
    operands |= {"bias": _normal(7), "alpha": jnp.float32(2), "beta": jnp.float32(3)}
    names = mapped.split()
    operands |= {n: _normal(5, *operands[n].shape, seed=1) for n in names}
    axes = tuple(0 if n in names else None for n in operands)

    def run(*xs: Any) -> jax.Array:
        named = dict(zip(operands, xs, strict=True))
        return gemm(**named, activation="gelu", autodiff=autodiff)

    def plain(*xs: Any) -> jax.Array:
        return _plain(**dict(zip(operands, xs, strict=True)))

    _assert_same_derivatives(run, plain, axes, tuple(range(6)), tuple(operands.values()))
    out = np.asarray(jax.vmap(run, axes)(*operands.values()))
    for i in range(5):
        entry = {n: np.asarray(x)[i] if n in names else x for n, x in operands.items()}
        oracle.check(out[i], oracle.gemm(**entry, activation="gelu"))


GATED_AXES = [axes for axes in itertools.product((0, None), repeat=3) if axes != (None,) * 3]


@pytest.mark.parametrize("axes", GATED_AXES, ids=str)
def test_gate_and_up_may_be_mapped_apart(axes: tuple[int | None, ...]) -> None:
    shapes = (2, 3), (3, 5), (3, 5)
    args = [
        _normal(*(() if axis is None else (4,)), *shape, seed=i)
        for i, (axis, shape) in enumerate(zip(axes, shapes, strict=True))
    ]

    def plain(x: jax.Array, gate: jax.Array, up: jax.Array) -> jax.Array:
        return jax.nn.silu(x @ gate) * (x @ up)

    _assert_same_derivatives(jaxgemm.gated_gemm, plain, axes, (0, 1, 2), args)


@pytest.mark.parametrize("mapped", ["lhs", "rhs", "bias", "sizes"])
def test_one_operand_of_a_grouped_product_may_be_mapped(mapped: str) -> None:
    cores = {"lhs": (6, 2), "rhs": (3, 2, 5), "bias": (3, 5)}
    args = {n: _normal(*([3] * (n == mapped)), *core, seed=1) for n, core in cores.items()}
    sizes = jnp.array([[1, 0, 3], [0, 6, 0], [4, 4, 4]])
    args["sizes"] = sizes if mapped == "sizes" else sizes[0]

    def run(lhs: Any, rhs: Any, bias: Any, sizes: Any) -> jax.Array:
        return grouped_gemm(lhs, rhs, sizes, bias=bias, activation="silu")

    def plain(lhs: Any, rhs: Any, bias: Any, sizes: Any) -> jax.Array:
        ends = jnp.cumsum(sizes)
        group = jnp.minimum(jnp.searchsorted(ends, jnp.arange(6), side="right"), 2)
        z = jnp.einsum("mk,mkn->mn", lhs, rhs[group]) + bias[group]
        return jnp.where(jnp.arange(6)[:, None] < ends[-1], jax.nn.silu(z), 0)

    axes = tuple(0 if name == mapped else None for name in args)
    _assert_same_derivatives(run, plain, axes, (0, 1, 2), tuple(args.values()))


# --- sharding: a custom call under SPMD. More of it is in tests/test_sharding.py.


def _mesh(**axes: int) -> jax.sharding.Mesh:
    return jax.make_mesh(
        tuple(axes.values()), tuple(axes), axis_types=(jax.sharding.AxisType.Auto,) * len(axes)
    )


@pytest.mark.parametrize("check", [True, False], ids=["SH03 checked", "SH03 unchecked"])
def test_weight_gradient_of_data_parallel_rows_is_the_whole_one(check: bool) -> None:
    x, w, mesh = _integers(8, 3), _integers(3, 5, seed=1), _mesh(data=4)
    rows, whole = PartitionSpec("data"), PartitionSpec()

    def step(product: Callable[..., jax.Array], x: jax.Array, w: jax.Array) -> Any:
        loss = lambda w: lax.psum((product(x, w) ** 2).sum(), "data")  # noqa: E731
        value, bar = jax.value_and_grad(loss)(w)
        return value, bar[None]

    def run(product: Callable[..., jax.Array]) -> tuple[jax.Array, jax.Array]:
        local = jax.shard_map(
            functools.partial(step, product),
            mesh=mesh,
            in_specs=(rows, whole),
            out_specs=(whole, rows),
            check_vma=check,
        )
        return jax.jit(local)(x, w)

    value, bars = run(gemm)
    a, b = oracle.f64(x), oracle.f64(w)
    _same(value, ((a @ b) ** 2).sum())
    if check:
        _same(bars, np.broadcast_to(2 * a.T @ (a @ b), bars.shape))
    # Without types that say what varies, the sum over devices is the caller's, as for a dot.
    _same(bars, run(jnp.matmul)[1])


@pytest.mark.parametrize("sharded", ["rows", "groups", "columns", "depth"], ids="SH04 {0}".format)
def test_grouped_product_of_sharded_operands(sharded: str) -> None:
    mesh = _mesh(x=4)
    sizes = jnp.array([5, 0, 9, 20])
    lhs, rhs = _integers(40, 8), _integers(4, 8, 12, seed=1)
    specs = {
        "rows": (PartitionSpec("x"), PartitionSpec()),
        "groups": (PartitionSpec(), PartitionSpec("x")),
        "columns": (PartitionSpec(), PartitionSpec(None, None, "x")),
        "depth": (PartitionSpec(None, "x"), PartitionSpec(None, "x")),
    }[sharded]
    placed = [
        jax.device_put(x, NamedSharding(mesh, p)) for x, p in zip((lhs, rhs), specs, strict=True)
    ]
    out, *bars = _grouped_vjp(*placed, sizes, jnp.ones((40, 12)))
    want, *want_bars = _grouped_vjp(lhs, rhs, sizes, jnp.ones((40, 12)))
    oracle.check(out, oracle.grouped(np.asarray(lhs), np.asarray(rhs), sizes))
    _same(out, want)
    for got, right in zip(bars, want_bars, strict=True):
        _same(got, right)


# --- autotune-dispatch and graph-capture: what is compiled once must be right for every value.


def test_one_compiled_product_is_right_for_every_distribution() -> None:
    """AT09, GC02, JX04: sizes that are computed inside, of any integer dtype."""
    rng = np.random.default_rng(0)
    lhs, rhs = _integers(64, 6), _integers(8, 6, 5, seed=1)
    traces = []

    @functools.partial(jax.jit, static_argnames="dtype")
    def run(ids: jax.Array, dtype: str) -> jax.Array:
        traces.append(dtype)
        sizes = jnp.bincount(ids, length=8).astype(dtype)
        return grouped_gemm(lhs, rhs, sizes)

    def check(ids: np.ndarray, dtype: str) -> None:
        want = oracle.grouped(np.asarray(lhs), np.asarray(rhs), np.bincount(ids, minlength=8)).value
        _same(run(ids, dtype), want)

    with jax.enable_x64(True):
        splits = [np.full(64, 3), *(rng.choice(rng.integers(0, 8, 3), 64) for _ in range(10))]
        for dtype in ("int32", "int64", "uint32", "int8"):
            for ids in (*splits, splits[0]):
                check(ids, dtype)
    assert traces == ["int32", "int64", "uint32", "int8"]


def test_wide_sizes_are_clipped_before_they_are_narrowed() -> None:
    lhs, rhs = _integers(6, 3), _integers(2, 3, 4, seed=1)
    whole = oracle.f64(lhs) @ oracle.f64(rhs[0])
    with jax.enable_x64(True):
        for first in (2**32, 2**32 + 1, 2**40):
            _same(grouped_gemm(lhs, rhs, jnp.array([first, 3], "int64")), whole)
    _same(grouped_gemm(lhs, rhs, np.array([2**32 - 1, 3], np.uint32)), whole)


SCALAR_KINDS: dict[str, Callable[[int], Any]] = {
    "int": int,
    "float": float,
    "np.float64": np.float64,
    "np.int64": np.int64,
    "np 0-d": np.asarray,
    "jnp": jnp.asarray,
    "jnp bf16": lambda x: jnp.asarray(x, "bfloat16"),
}


@pytest.mark.parametrize("kind", SCALAR_KINDS, ids="GC04 {0}".format)
def test_every_kind_of_scalar_is_one_scalar(kind: str) -> None:
    a, b, c = _integers(2, 3), _integers(3, 4), _integers(2, 4)
    scalar = SCALAR_KINDS[kind]
    for alpha, beta in ((1, 2), (3, 1), (2, 0)):
        want = alpha * (oracle.f64(a) @ oracle.f64(b)) + beta * oracle.f64(c)
        _same(gemm(a, b, c, alpha=scalar(alpha), beta=scalar(beta)), want)


def test_flags_of_python_and_numpy() -> None:
    """GC04."""
    a, b, c = _integers(2, 3), _integers(3, 4), _integers(2, 4)
    product = oracle.f64(a) @ oracle.f64(b)
    for true in (True, np.bool_(True)):
        _same(gemm(a.T, b.T, transpose_a=true, transpose_b=true), product)
        _same(gemm(a, b, c, alpha=true, beta=true), product + oracle.f64(c))
        _same(gemm(a, b, batch_invariant=true), product)


# --- aliasing: a donated operand is read before it is overwritten, any other is not changed.


@pytest.mark.parametrize("donated", [(), (0,), (1,), (2,), (0, 1, 2)], ids="LI01 {0}".format)
def test_donated_operands_are_read_first(donated: tuple[int, ...]) -> None:
    arrays = [np.asarray(_integers(9, 9, seed=i)) for i in range(3)]
    run = jax.jit(
        lambda a, b, c: (gemm(a, b, c, alpha=2, beta=0.5), a + 1, b + 2), donate_argnums=donated
    )
    given = [jnp.array(x) for x in arrays]
    out, *others = run(*given)
    _same(out, 2 * arrays[0] @ arrays[1] + 0.5 * arrays[2])
    for got, want in zip(others, (arrays[0] + 1, arrays[1] + 2), strict=True):
        _same(got, want)
    for i, x in enumerate(given):
        if i not in donated:
            _same(x, arrays[i])


def test_one_array_may_be_every_operand() -> None:
    """LI01, LI04."""
    x = np.asarray(_integers(9, 9))
    _same(jax.jit(lambda x: gemm(x, x), donate_argnums=0)(jnp.array(x)), x @ x)
    _same(jax.jit(lambda x: gemm(x, x, x), donate_argnums=0)(jnp.array(x)), x @ x + x)


# --- jit-export-remat.


def test_export_round_trip() -> None:
    """JX01: of both operations, with gradients, for the platforms that there are."""
    x, w, bias = _normal(6, 4), _normal(3, 4, 5), _normal(5)
    sizes = jnp.array([2, 0, 3])

    def run(x: jax.Array, w: jax.Array, bias: jax.Array) -> jax.Array:
        dense = gemm(x, w[0], bias=bias, activation="gelu")
        return (dense * grouped_gemm(x, w, sizes)).sum()

    exported = export.export(jax.jit(run), platforms=("cpu", "cuda"))(x, w, bias)
    loaded = export.deserialize(exported.serialize(vjp_order=1))
    assert loaded.platforms == ("cpu", "cuda")
    np.testing.assert_allclose(loaded.call(x, w, bias), run(x, w, bias), rtol=1e-6)
    got, want = (jax.grad(f, (0, 1, 2))(x, w, bias) for f in (loaded.call, run))
    for bar, right in zip(got, want, strict=True):
        np.testing.assert_allclose(bar, right, rtol=1e-5, atol=1e-6)


def test_sources_have_tests() -> None:
    """Every report of the table is named beside its test."""
    text = inspect.getsource(inspect.getmodule(test_sources_have_tests))
    body = text[text.index("gemm, grouped_gemm =") :]
    missing = [name for name in SOURCES if name not in body]
    assert not missing
