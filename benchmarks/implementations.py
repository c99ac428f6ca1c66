"""Everything that can run a row: jaxgemm, its kernels, and what users have without it."""

import dataclasses
import functools
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import jaxgemm
from benchmarks import cases, cublaslt, jax_pallas, torch_baselines
from benchmarks.cases import Case, Function, Operands
from benchmarks.variants import Implementation, Variant, compiled, forward_and_vjp
from jaxgemm import FallbackWarning, device, dispatch, epilogue, registry
from jaxgemm.tuning import resources

_NO_TRITON = {"xla_gpu_enable_triton_gemm": False}


def _explained(case: Case, mode: str, backend: str) -> dict[str, Any]:
    """The kernels and configs behind a call, and the waves of its first product."""
    function: Any = cases.call(case, backend)
    if mode != "forward":
        function = forward_and_vjp(function, case.differentiable)
    rows = jaxgemm.explain(function, case.avals(mode)).rows
    facts: dict[str, Any] = {"config": "; ".join(_config(row) for row in rows)}
    choice = rows[0].plan.choices[0] if rows and isinstance(rows[0].plan, dispatch.Plan) else None
    # A library does not say what its tiles are.
    if choice is not None and choice.config.smem_bytes:
        estimate = choice.estimate
        facts |= {
            "smem_bytes": choice.config.smem_bytes,
            "waves": estimate.waves,
            "tail_utilisation": estimate.tail_utilisation,
        }
    return facts


def _config(row: Any) -> str:
    if not isinstance(row.plan, dispatch.Plan) or row.kernel == "xla.reference":
        return row.kernel
    text = str(row.plan.choices[0].config)
    return row.kernel + text[text.find("(") :]


def _ours(name: str, backend: str) -> Implementation:
    def why_not(case: Case, mode: str) -> str | None:
        if backend == "auto":
            return None
        rows = jaxgemm.explain(cases.call(case), case.avals("forward")).rows
        (kernel,) = registry.selected(backend)
        reasons = [kernel.why_not(row.problem, device.current()) for row in rows]
        return reasons[0] if reasons and all(reasons) else None

    def variants(case: Case, mode: str, sample: Operands) -> Iterator[Variant]:
        # A kernel that fails to lower must not be timed as its fallback.
        with warnings.catch_warnings():
            warnings.simplefilter("error", FallbackWarning)
            facts = _explained(case, mode, backend)
            with resources.watch() as said:
                variant = compiled(cases.call(case, backend), case, mode, sample)
            yield dataclasses.replace(variant, resources=said(), **facts)

    def tuned_by_xla(case: Case, mode: str) -> bool:
        return "xla.reference" in _explained(case, mode, backend)["config"]

    return Implementation(name, why_not, variants, stepwise=False, tuned_by_xla=tuned_by_xla)


def _always(case: Case, mode: str) -> bool:
    del case, mode
    return True


def _precision(case: Case) -> lax.Precision | None:
    if case.problem.accumulator.name != "float32" or case.row.a_dtype != "float32":
        return None
    highest = case.problem.spec.precision == "highest"
    return lax.Precision.HIGHEST if highest else lax.Precision.DEFAULT


def _jnp(case: Case, accumulate: bool) -> Function:
    """The row as users write it: products in the result's dtype, or in that of the accumulator."""
    row, acc = case.row, case.problem.accumulator
    out = jnp.dtype(row.out_dtype)
    plain = jnp.promote_types(row.a_dtype, row.b_dtype)
    preferred = acc if accumulate or plain.itemsize == 1 else None if plain == out else out
    dot = functools.partial(
        jnp.matmul, precision=_precision(case), preferred_element_type=preferred
    )
    activation = epilogue.ACTIVATIONS[case.activation].apply if case.activation else lambda x: x

    def function(x: Operands) -> Any:
        b_names = ("b", "b_up") if "b_up" in x else ("b",)
        products = []
        for name in b_names:
            a, b = x["a"], x[name]
            a = jnp.swapaxes(a, 0, 1) if case.interleaved else a
            a = jnp.swapaxes(a, -1, -2) if row.trans_a else a
            b = jnp.swapaxes(b, -1, -2) if row.trans_b else b
            products.append(dot(a, b))
        z = products[0]
        z = z if "alpha" not in x else x["alpha"].astype(z.dtype) * z
        if "c" in x:
            z = z + (x["c"] if "beta" not in x else x["beta"].astype(z.dtype) * x["c"])
        z = z + x["bias"] if "bias" in x else z
        d = activation(z) if "z" not in x else jax.vjp(activation, x["z"].astype(z.dtype))[1](z)[0]
        d = d * products[1] if len(products) == 2 else d
        if case.problem.spec.sum_dtype is not None:
            return d.astype(out), d.sum(-2).astype(out)
        d = d.astype(out)
        return jnp.swapaxes(d, 0, 1) if case.interleaved else d

    return function


def _dense_only(case: Case, mode: str) -> str | None:
    del mode
    return "groups: lax.ragged_dot is the baseline" if case.row.groups else None


def _jnp_dot(accumulate: bool, precision: str = "") -> Implementation:
    """`precision`: the class of float32 rows that this one is for, "" for other dtypes."""

    def why_not(case: Case, mode: str) -> str | None:
        row = case.row
        mine = (
            {"float32": "highest", "tfloat32": "tf32"}[row.compute_dtype]
            if (row.a_dtype == row.b_dtype == "float32")
            else ""
        )
        if mine != precision:
            return "another precision"
        if accumulate and row.out_dtype == str(case.problem.accumulator):
            return "the same as jnp.dot"
        return _dense_only(case, mode)

    def variants(case: Case, mode: str, sample: Operands) -> Iterator[Variant]:
        yield compiled(_jnp(case, accumulate), case, mode, sample, config="as written")
        if case.problem.spec.gated and mode == "forward" and not accumulate:
            yield _one_product(case, sample)

    name = "jnp.dot" + ("[f32acc]" if accumulate else f"[{precision}]" if precision else "")
    return Implementation(name, why_not, variants, tuned_by_xla=_always)


def _one_product(case: Case, sample: Operands) -> Variant:
    """A gated row whose weights lie side by side in one array, as models that can store them."""
    row, n = case.row, case.problem.n
    axis = -2 if row.trans_b else -1
    activation = epilogue.ACTIVATIONS[case.activation].apply if case.activation else lambda x: x

    def function(x: Operands) -> jax.Array:
        w = jnp.swapaxes(x["b"], -1, -2) if row.trans_b else x["b"]
        both = jnp.matmul(x["a"], w, precision=_precision(case))
        return (activation(both[..., :n]) * both[..., n:]).astype(row.out_dtype)

    @jax.jit
    def prepare(x: Operands) -> Operands:
        return {"a": x["a"], "b": jnp.concatenate([x["b"], x["b_up"]], axis)}

    variant = compiled(function, case, "forward", prepare(sample), config="one product")
    return dataclasses.replace(variant, prepare=prepare)


def _xla_best() -> Implementation:
    def why_not(case: Case, mode: str) -> str | None:
        if jax.default_backend() != "gpu":
            return "no GPU: XLA has one way to multiply"
        return _dense_only(case, mode)

    def variants(case: Case, mode: str, sample: Operands) -> Iterator[Variant]:
        for accumulate in (False, True):
            if accumulate and case.row.out_dtype == str(case.problem.accumulator):
                continue
            for options in (None, _NO_TRITON):
                config = f"triton={options is None} f32acc={accumulate}"
                function = _jnp(case, accumulate)
                yield compiled(function, case, mode, sample, config=config, options=options)

    return Implementation("xla.best", why_not, variants, tuned_by_xla=_always)


def _ragged(case: Case) -> Function:
    row, spec = case.row, case.problem.spec
    out = jnp.dtype(row.out_dtype)
    activation = epilogue.ACTIVATIONS[case.activation].apply if case.activation else lambda x: x
    options = {"precision": _precision(case), "preferred_element_type": out}

    def rows(x: Operands) -> jax.Array:
        b = jnp.swapaxes(x["b"], 1, 2) if row.trans_b else x["b"]
        d = lax.ragged_dot(x["a"], b, x["group_sizes"], **options)
        if "bias" in x:
            group = jnp.repeat(jnp.arange(row.groups), x["group_sizes"], total_repeat_length=row.m)
            d = d + x["bias"][group]
        return activation(d)

    def contraction(x: Operands) -> jax.Array:
        a_axis = 0 if row.trans_a else 1
        numbers = lax.RaggedDotDimensionNumbers((((a_axis,), (0,)), ((), ())), (a_axis,), ())
        return lax.ragged_dot_general(x["a"], x["b"], x["group_sizes"], numbers, **options)

    return contraction if spec.ragged == "k" else rows


def _ragged_dot() -> Implementation:
    def why_not(case: Case, mode: str) -> str | None:
        return None if case.row.groups else "no groups"

    def variants(case: Case, mode: str, sample: Operands) -> Iterator[Variant]:
        yield compiled(_ragged(case), case, mode, sample)

    return Implementation("lax.ragged_dot", why_not, variants, tuned_by_xla=_always)


@functools.cache
def implementations() -> dict[str, Implementation]:
    """All of them by name, in the order in which they are listed."""
    found = [
        _ours("jaxgemm", "auto"),
        _jnp_dot(False),
        _jnp_dot(False, "tf32"),
        _jnp_dot(False, "highest"),
        _jnp_dot(True),
        _xla_best(),
        _ragged_dot(),
        cublaslt.IMPLEMENTATION,
        *jax_pallas.IMPLEMENTATIONS,
        *torch_baselines.IMPLEMENTATIONS,
        *(_ours(kernel.name, kernel.name) for kernel in registry.kernels()),
    ]
    return {implementation.name: implementation for implementation in found}


def select(
    names: list[str], among: Mapping[str, Implementation] | None = None
) -> list[Implementation]:
    """Those whose name is one of these or begins with it; "all" leaves out single kernels.

    Raises:
      ValueError: nothing has such a name.
    """
    among = implementations() if among is None else among
    kernels = {kernel.name for kernel in registry.kernels()}
    chosen = {}
    for wanted in names:
        matches = [
            implementation
            for name, implementation in among.items()
            if (wanted == "all" and name not in kernels)
            or (wanted == "kernels" and name in kernels)
            or name == wanted
            or name.startswith((f"{wanted}.", f"{wanted}["))
        ]
        if not matches:
            known = sorted({"all", "kernels", *among})
            raise ValueError(f"--backends: {wanted!r} is unknown; it should be one of {known}")
        chosen |= {match.name: match for match in matches}
    return list(chosen.values())


def baseline(names: list[str], case: Case) -> str | None:
    """The one among these that ratios refer to: what users would write today."""
    order = ("lax.ragged_dot",) if case.row.groups else ("jnp.dot", "xla.best")
    return next((name for wanted in order for name in names if name.split("[")[0] == wanted), None)
