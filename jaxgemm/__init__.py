"""jaxgemm: GEMM for JAX on NVIDIA GPUs, fused, differentiable and explained."""

from jaxgemm import autodiff as _autodiff
from jaxgemm import lowering as _lowering
from jaxgemm.api import gated_gemm, gemm, grouped_gemm, mlp
from jaxgemm.dropins import dot_general, matmul, ragged_dot
from jaxgemm.errors import FallbackWarning, UnsupportedProblem
from jaxgemm.explain import Explanation, explain
from jaxgemm.policy import use
from jaxgemm.rules import batching as _batching
from jaxgemm.rules.remat import checkpoint_dots, checkpoint_dots_with_no_batch_dims
from jaxgemm.tuning.roofline import roofline
from jaxgemm.tuning.search import tune

# Importing the rules registers them; these names are not part of the surface.
del _autodiff, _batching, _lowering

__version__ = "0.1.0"
__all__ = [
    "Explanation",
    "FallbackWarning",
    "UnsupportedProblem",
    "checkpoint_dots",
    "checkpoint_dots_with_no_batch_dims",
    "dot_general",
    "explain",
    "gated_gemm",
    "gemm",
    "grouped_gemm",
    "matmul",
    "mlp",
    "ragged_dot",
    "roofline",
    "tune",
    "use",
]
