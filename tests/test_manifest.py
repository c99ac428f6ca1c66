"""The manifest: every row is a product that can be measured, or has a reason."""

import dataclasses
import itertools
import math

import jax
import numpy as np
import pytest

from benchmarks import cases, groups, manifest


def test_every_row_of_the_manifest_is_a_case_or_has_a_reason():
    unsupported = {}
    for row in manifest.rows():
        try:
            case = cases.of(row)
        except cases.Unsupported as reason:
            unsupported[row.name] = str(reason)
            continue
        assert case.problem.n == (row.n // 2 if case.problem.spec.gated else row.n)
        assert case.flops <= 2 * row.m * row.n * row.k * row.batch
        with jax.enable_x64(row.a_dtype == "float64"):
            outputs = jax.eval_shape(cases.call(case), case.avals("forward"))
        assert isinstance(outputs, tuple) == case.is_backward
        d, *others = jax.tree.leaves(outputs)
        assert len(others) == (case.problem.spec.sum_dtype is not None)
        assert case.avals("vjp")["d_bar"].shape == d.shape
        assert d.dtype.name == row.out_dtype
    assert len(unsupported) == 17
    assert all(unsupported.values())


def test_groups_have_no_epilogue_of_a_backward_pass():
    row = next(row for row in manifest.rows() if row.layout == "ragged_m" and not row.scaling)
    for epilogue in ("dgelu", "dbias"):
        with pytest.raises(cases.Unsupported, match="groups with a step back"):
            cases.of(dataclasses.replace(row, epilogue=epilogue))


def test_manifest_names_what_is_wrong():
    head = ",".join(field.name for field in dataclasses.fields(manifest.Row))
    with pytest.raises(ValueError, match="columns"):
        manifest.parse(["name,m", "x,1"])
    values = {f.name: "0" for f in dataclasses.fields(manifest.Row)} | {"name": "x", "m": "many"}
    with pytest.raises(ValueError, match="line 2"):
        manifest.parse([head, ",".join(values.values())])
    values |= {"m": "1", "mode": ""}
    with pytest.raises(ValueError, match="one row"):
        manifest.parse([head, *[",".join(values.values())] * 2])


def test_suites_filters_and_sweeps_select_rows():
    assert len(manifest.select(["readme"], None)) >= 14
    assert [r.name for r in manifest.select(["all"], "^smoke_swiglu$")] == ["smoke_swiglu"]
    with pytest.raises(ValueError, match="--suite"):
        manifest.select(["nothing"], None)
    swept = manifest.sweep("64:192:64", "", "32", a_dtype="float32")
    assert [(r.m, r.n, r.k) for r in swept] == [(64, 64, 32), (128, 128, 32), (192, 192, 32)]
    with pytest.raises(ValueError, match=r"--k: '1:2:3:4' should be .* first:last:step"):
        manifest.span("--k", "1:2:3:4")


def test_rows_of_sweeps_that_differ_have_different_names():
    dtypes = ("bfloat16", "float32")
    choices = {
        "m": ("64", "128"),
        "n": ("", "32"),
        "k": ("", "32"),
        "a_dtype": dtypes,
        "out_dtype": dtypes,
        "epilogue": ("none", "bias", "bias+gelu", "swiglu", "bias+residual"),
        "batch": (1, 3),
        "trans_a": (False, True),
        "trans_b": (False, True),
    }
    found: dict[str, manifest.Row] = {}
    for values in itertools.product(*choices.values()):
        m, n, k, *others = values
        common = dict(zip(list(choices)[3:], others, strict=True))
        (row,) = manifest.sweep(m, n, k, **common)
        assert found.setdefault(row.name, row) == row
    assert len(found) == math.prod(map(len, choices.values()))
    (row,) = manifest.sweep("64", "", "", trans_b=True, batch=3, epilogue="bias+gelu")
    assert row.name == "sweep_64x64x64_bfloat16_nt_b3_bias_gelu"
    assert manifest.sweep("64", "", "")[0].name == "sweep_64x64x64_bfloat16"


@pytest.mark.parametrize("row", [r for r in manifest.rows() if r.distribution], ids=str)
def test_distributions_deal_at_most_all_rows(row: manifest.Row):
    if not row.layout.startswith("ragged"):
        return
    total = row.m if row.layout == "ragged_m" else row.k
    sizes = groups.sizes(row.distribution, total, row.groups)
    assert sizes.dtype == np.int32
    assert (sizes >= 0).all()
    assert sizes.sum() <= total
    np.testing.assert_array_equal(sizes, groups.sizes(row.distribution, total, row.groups))
