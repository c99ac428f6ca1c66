"""Trains a small byte-level language model whose every matrix product is jaxgemm's.

Ways to run it:
    python examples/train_lm.py                  # two CPU cores: under two minutes
    python examples/train_lm.py --baseline       # the same model on jnp.dot and lax.ragged_dot
    python examples/train_lm.py --compare        # both, and whether their loss curves agree
    python examples/train_lm.py --preset=h200    # a model that is worth a large GPU
"""

import dataclasses
import math
import textwrap

import jax
import jax.numpy as jnp
import lm_data
import lm_model
import lm_training
import numpy as np
from absl import app, flags
from jax.typing import DTypeLike
from lm_model import BASELINE, JAXGEMM, Params, Products, Sizes
from lm_training import Run, Settings

import jaxgemm

PRESETS: dict[str, tuple[Sizes, int, float]] = {
    # sizes, steps, learning rate
    "small": (Sizes(), 500, 3e-3),
    "h200": (
        Sizes(
            d_model=1024,
            num_layers=8,
            num_heads=16,
            d_ff=2816,
            d_expert=1408,
            seq=512,
            batch_size=16,
        ),
        300,
        6e-4,
    ),
}
COMPARED_STEPS = 50
_TF32_UNIT_ROUNDOFF = 2.0**-11
_SAMPLE_BYTES = 200

FLAGS = flags.FLAGS
flags.DEFINE_enum("preset", "small", list(PRESETS), "Sizes, number of steps and learning rate.")
flags.DEFINE_enum(
    "compute_dtype",
    "auto",
    ["auto", "float32", "bfloat16"],
    "Of products; auto: bfloat16 on a GPU.",
)
flags.DEFINE_bool("baseline", False, "Train on jnp.dot and lax.ragged_dot.")
flags.DEFINE_bool("compare", False, "Train on both and compare the loss curves.")
flags.DEFINE_integer("seed", 0, "Of parameters, batches and the sample.")
flags.DEFINE_integer("steps", None, "Overrides the preset's number of updates.", lower_bound=1)
flags.DEFINE_float("learning_rate", None, "Overrides the preset's.")
for _field in dataclasses.fields(Sizes):
    flags.DEFINE_integer(_field.name, None, f"Overrides the preset's {_field.name}.", lower_bound=1)
flags.mark_bool_flags_as_mutual_exclusive(["baseline", "compare"])


def tolerance(sizes: Sizes, dtype: DTypeLike) -> float:
    """By how many nats two tables' losses may differ in one of the first `COMPARED_STEPS` steps.

    Both tables add up the same products, in another order and rounded at other places. What that
    changes in a loss directly is small. What shows is a byte that goes to another expert, because
    two of the router's logits are a tie but for rounding. Logits are of size 4 or less, and four
    of them are rounded, two in each table: those within 16 unit roundoffs may swap. Their gaps are
    spread over one or more, so that is a share of at most 16 unit roundoffs of the bytes; and one
    byte may always swap. Its loss goes up or down by a nat at most, about.

    Seen, with the small preset on a CPU and four seeds (2026-11-30): 5e-7 of 1e-3 allowed in
    float32, 2.4e-2 of 6.4e-2 in bfloat16. After some hundred steps even a float32 run has had its
    swaps, and the curves part: by 2e-2 at most in 500 steps, and by 1e-3 in the held-out loss.
    """
    unit_roundoff = float(jnp.finfo(dtype).eps) / 2
    if dtype == jnp.float32 and jax.default_backend() != "cpu":
        unit_roundoff = _TF32_UNIT_ROUNDOFF
    return 16 * unit_roundoff + 1 / (sizes.batch_size * sizes.seq)


def _choices() -> tuple[Sizes, Settings]:
    """What the flags ask for."""
    sizes, steps, learning_rate = PRESETS[FLAGS.preset]
    given = {field.name: FLAGS[field.name].value for field in dataclasses.fields(Sizes)}
    sizes = dataclasses.replace(sizes, **{k: v for k, v in given.items() if v is not None})
    dtype = FLAGS.compute_dtype
    if dtype == "auto":
        dtype = "bfloat16" if jax.default_backend() == "gpu" else "float32"
    return sizes, Settings(
        steps=FLAGS.steps or steps,
        learning_rate=FLAGS.learning_rate or learning_rate,
        seed=FLAGS.seed,
        dtype=jnp.dtype(dtype),
    )


def _train_and_report(products: Products, sizes: Sizes, settings: Settings) -> Run:
    """Trains; prints the speed, the held-out loss beside what it has to beat, and a sample."""
    train, held_out = lm_data.split(lm_data.load_text())
    run = lm_training.train(products, sizes, settings, train)
    print(f"compiled in {run.compile_s:.1f} s, then {run.tokens_per_s:,.0f} tokens/s\n")
    loss = lm_training.evaluate(products, sizes, settings.dtype, run.params, held_out)
    entropy = lm_data.unigram_entropy(train, held_out)
    for name, nats in (("held-out loss", loss), ("byte-unigram entropy", entropy)):
        print(f"{name:<20}  {nats:.3f} nats/byte  {nats / math.log(2):.3f} bits/byte")
    prompt = held_out[: sizes.seq]
    drawn = lm_training.sample(products, sizes, settings, run.params, prompt, _SAMPLE_BYTES)
    print(f"\nThe held-out text begins\n{_quote(prompt.tobytes())}")
    print(f"and the model goes on\n{_quote(drawn)}\n")
    return run


def _quote(text: bytes) -> str:
    return textwrap.indent(text.decode(errors="replace"), "  | ", lambda line: True)


def _shapes(sizes: Sizes) -> Params:
    """The parameters without their values."""
    return jax.eval_shape(lambda: lm_model.init(sizes, 0))


def _explain(sizes: Sizes, settings: Settings) -> None:
    """Prints the GEMMs of a loss and its gradient, and which kernel takes each."""
    function = lm_training.gradient(JAXGEMM, sizes, settings.dtype)
    explanation = jaxgemm.explain(function, _shapes(sizes), lm_training.batch_shape(sizes))
    print(f"{len(explanation.rows)} distinct GEMMs in a step, on {explanation.device.name}")
    print(f"(a block counts once; there are {sizes.num_layers // 2})\n{explanation.table()}")


def agree(one: Run, other: Run, allowed: float) -> bool:
    """Prints how far apart two loss curves are, and whether that is within the tolerance."""
    apart = np.abs(one.losses - other.losses)
    first, everywhere = apart[:COMPARED_STEPS], apart.max()
    inside = bool(first.max() <= allowed)
    print(
        f"\nlargest difference of the losses: {first.max():.2g} nats in the first {len(first)}"
        f" steps, {'inside' if inside else 'OUTSIDE'} the tolerance of {allowed:.2g};"
        f" {everywhere:.2g} in all {len(apart)}"
    )
    print(f"speed: {one.tokens_per_s / other.tokens_per_s:.2f} times the baseline's tokens/s")
    return inside


def main(argv: list[str]) -> int:
    """Does what the flags ask for; 1 if `--compare` finds curves that do not agree."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]}")
    sizes, settings = _choices()
    count = sum(math.prod(x.shape) for x in jax.tree.leaves(_shapes(sizes)))
    print(f"{count:,} parameters, {settings.dtype} products, {jax.devices()[0].device_kind}")
    if FLAGS.baseline:
        _train_and_report(BASELINE, sizes, settings)
        return 0
    run = _train_and_report(JAXGEMM, sizes, settings)
    _explain(sizes, settings)
    if not FLAGS.compare:
        return 0
    print()
    baseline = _train_and_report(BASELINE, sizes, settings)
    return 0 if agree(run, baseline, tolerance(sizes, settings.dtype)) else 1


if __name__ == "__main__":
    app.run(main)
