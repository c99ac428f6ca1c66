"""Where the public reports are, by the id that labels their tests."""

from pathlib import Path

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


def test_sources_have_tests() -> None:
    """Every report of the table is named beside its test."""
    here = Path(__file__)
    body = "".join(
        path.read_text(encoding="utf-8") for path in here.parent.glob("test_*.py") if path != here
    )
    missing = [name for name in SOURCES if name not in body]
    assert not missing
