"""The language-model example: its text, its two tables of products, and its command."""

import dataclasses
import functools
import importlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import flagsaver
from jax.extend import core

import jaxgemm

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
lm_data, lm_model, lm_training, train_lm = map(
    importlib.import_module, ("lm_data", "lm_model", "lm_training", "train_lm")
)

SIZES = lm_model.Sizes(d_model=64, num_heads=1, d_ff=64, d_expert=64, seq=64)
SETTINGS = lm_training.Settings(steps=20, learning_rate=1e-2, seed=0, dtype=jnp.float32)
PRODUCTS = {"dot_general", "ragged_dot", "ragged_dot_general", "conv_general_dilated"}


@pytest.fixture(autouse=True)
def reference_allowed() -> Iterator[None]:
    """Sizes this small need not have a kernel on a GPU."""
    with jaxgemm.use(strict=False):
        yield


@functools.cache
def run(name: str) -> Any:
    table = {"jaxgemm": lm_model.JAXGEMM, "baseline": lm_model.BASELINE}[name]
    return lm_training.train(table, SIZES, SETTINGS, lm_data.split(lm_data.load_text())[0])


def primitives(jaxpr: Any) -> Iterator[str]:
    """The name of every equation's primitive, those of inner jaxprs too."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        is_jaxpr = lambda x: isinstance(x, core.ClosedJaxpr | core.Jaxpr)  # noqa: E731
        for leaf in jax.tree.leaves(equation.params, is_leaf=is_jaxpr):
            if is_jaxpr(leaf):
                yield from primitives(getattr(leaf, "jaxpr", leaf))


def primitives_of_step(products: Any) -> set[str]:
    function = lm_training.gradient(products, SIZES, SETTINGS.dtype)
    params = lm_model.init(SIZES, 0)
    return set(primitives(jax.make_jaxpr(function)(params, lm_training.batch_shape(SIZES)).jaxpr))


def test_entropy_of_a_toy_text():
    train, held_out = (np.frombuffer(text, np.uint8) for text in (b"aab", b"ab"))
    # Each of 256 counts is one higher: 3 of 259 are a, 2 are b.
    expected = -(math.log(3 / 259) + math.log(2 / 259)) / 2
    assert lm_data.unigram_entropy(train, held_out) == pytest.approx(expected)


def test_text_is_english_and_the_split_keeps_it_whole():
    text = lm_data.load_text()
    train, held_out = lm_data.split(text)
    assert len(text) > 300_000
    assert b"statement" in text.tobytes()
    np.testing.assert_array_equal(np.concatenate([train, held_out]), text)
    assert len(held_out) == len(text) // 10


def test_windows_predict_every_byte_once():
    text = np.arange(26, dtype=np.uint8)
    windows = lm_data.windows(text, batch=2, seq=4)
    assert windows.shape == (3, 2, 5)
    np.testing.assert_array_equal(windows[..., 1:].reshape(-1), text[1:25])


def test_a_seed_always_gives_the_same_batches():
    text = np.arange(200, dtype=np.uint8)
    one, other = (lm_data.batches(text, batch=3, seq=8, seed=7) for _ in range(2))
    for _ in range(3):
        batch = next(one)
        np.testing.assert_array_equal(batch, next(other))
        np.testing.assert_array_equal(batch, batch[:, :1] + np.arange(9))


def test_every_product_of_a_step_is_a_gemm():
    names = primitives_of_step(lm_model.JAXGEMM)
    assert "gemm" in names
    assert not names & PRODUCTS


def test_no_product_of_the_baseline_is_a_gemm():
    names = primitives_of_step(lm_model.BASELINE)
    assert "gemm" not in names
    assert {"dot_general"} < names & PRODUCTS


def test_loss_curves_agree_within_the_stated_tolerance():
    apart = np.abs(run("jaxgemm").losses - run("baseline").losses)
    assert apart.shape == (SETTINGS.steps,)
    assert apart.max() <= train_lm.tolerance(SIZES, SETTINGS.dtype)


def test_loss_falls_below_the_unigram_entropy():
    train, held_out = lm_data.split(lm_data.load_text())
    losses = run("jaxgemm").losses
    assert losses[0] > math.log(256)
    assert losses[-5:].mean() < lm_data.unigram_entropy(train, held_out)


def test_curves_that_differ_by_more_are_called_outside(capsys: pytest.CaptureFixture[str]):
    one = run("jaxgemm")
    other = dataclasses.replace(one, losses=one.losses + np.float32(1e-2))
    assert train_lm.agree(one, one, allowed=1e-3)
    assert "inside the tolerance" in capsys.readouterr().out
    assert not train_lm.agree(one, other, allowed=1e-3)
    assert "OUTSIDE the tolerance" in capsys.readouterr().out


def test_the_command_reports_and_explains(capsys: pytest.CaptureFixture[str]):
    flags = [f"--{field.name}={getattr(SIZES, field.name)}" for field in dataclasses.fields(SIZES)]
    with flagsaver.flagsaver():
        train_lm.FLAGS(["train_lm.py", "--steps=3", "--compute_dtype=float32", *flags])
        assert train_lm.main(["train_lm.py"]) == 0
    printed = capsys.readouterr().out
    for text in ("3/3", "held-out loss", "byte-unigram entropy", "goes on", "distinct GEMMs"):
        assert text in printed


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_layers": 3}, "num_layers = 3: a block is two layers"),
        ({"num_heads": 3}, "3 heads, each of an even width"),
        ({"top_k": 9}, "top_k = 9: there are 8 experts only"),
    ],
)
def test_sizes_that_do_not_fit_are_named(changed: dict[str, int], message: str):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SIZES, **changed)
