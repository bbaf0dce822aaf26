"""Variables of the environment that kernels' processes are given: those that set up programs, frameworks and devices,
and what a user names. Everything else, such as what a CI's runner sets or a secret, stays with the judge."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

EXTENDS = "CONFORMANCE_PASS_ENV"
"""Variable with names and patterns, for commands that have no `--pass-env`."""
PASSED = {
    "where programs, libraries and headers are": """
        PATH LD_* DYLD_* LIBRARY_PATH CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH PKG_CONFIG_PATH PYTHON* VIRTUAL_ENV
        CONDA_* UV_* CC CXX CFLAGS CXXFLAGS CPPFLAGS LDFLAGS MAX_JOBS CMAKE_* NINJA_* CCACHE_* DEVELOPER_DIR
        SDKROOT __CF*""",
    "who the user is, and where files go": """
        HOME USER LOGNAME SHELL PWD HOSTNAME TMPDIR TMP TEMP XDG_* LANG LANGUAGE LC_* TZ TERM COLUMNS NO_COLOR""",
    "threads and memory": """
        OMP_* GOMP_* KMP_* MKL_* OPENBLAS_* GOTO_* BLIS_* VECLIB_* NUMEXPR_* TBB_* MALLOC_* GLIBC_TUNABLES NPY_*
        SLURM_*""",
    "devices, their drivers and libraries": """
        CUDA* CUDNN_* CUBLAS* CUTLASS_* NCCL_* NVIDIA_* NV_* NVCC_* ROCM_* ROCR_* HIP_* HIPCC_* HSA_* AMD_* GPU_*
        MIOPEN_* ROCBLAS_* RCCL_* ONEAPI_* SYCL_* ZE_* IGC_* INTEL_* OCL_* OPENCL_* VK_* VULKAN_* MTL_* METAL_* NEURON*
        NKI_* TPU_* LIBTPU_* PJRT_* ASCEND_* HABANA_* MUSA_* MLU_* QAIC_* FI_*""",
    "frameworks and compilers": """
        TORCH* PYTORCH_* ATEN_* INDUCTOR_* AOTINDUCTOR_* JAX_* XLA_* TF_* NUMBA_* TRITON_* CUPY_* PALLAS_* ONEDNN_*
        DNNL_* ORT_* OV_* OPENVINO_* TVM_* IREE_* MLX_* NCNN_* OPENCV_* TINYGRAD_* DEV LLVM_* MLIR_* ET_*
        CONFORMANCE_NEURONX_CONV""",
    "the network, for what a framework fetches": """
        *_proxy *_PROXY SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE HF_HOME HF_HUB_* HF_DATASETS_*""",
    "tools that look into a process": "COVERAGE_* COV_CORE_* ASAN_* UBSAN_* TSAN_* LSAN_*",
}
"""Purpose -> names of variables that kernels are given, and patterns of names."""
SECRET = re.compile(r".*(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_?KEY)", re.I)
"""Names to which patterns do not apply: a variable with such a name is passed only if its whole name is given."""
_ALWAYS = tuple(word for words in PASSED.values() for word in words.split())
_BEGINNINGS = tuple(word[:-1] for word in _ALWAYS if word.endswith("*"))
_ENDS = tuple(word[1:] for word in _ALWAYS if word.startswith("*"))
"""What names begin or end with: to compile each pattern took a fiftieth of the time of a short run."""


def of_users(more: Iterable[str] = ()) -> str:
    """Return a digest of the variables that kernels are given because a user has named them; empty if there are none.
    Verdicts with one digest do not hold with another."""
    named = of_kernels(more).items() - of_kernels(usual=True).items()
    return hashlib.sha256(repr(sorted(named)).encode("utf-8", "surrogateescape")).hexdigest() if named else ""


def of_kernels(more: Iterable[str] = (), *, usual: bool = False) -> dict[str, str]:
    """Return the variables of kernels, with those that match one of `more`; or only the `usual` ones.

    Neuron's runtime gives a process all NeuronCores until it ends, unless it is told how many are wanted: kernels here
    use one, and a second process (of another worker, or of another file) needs its own.
    """
    extra = () if usual else (*os.environ.get(EXTENDS, "").replace(",", " ").split(), *more)
    patterns = (*_ALWAYS, *extra)

    def passes(name: str) -> bool:
        if name in patterns:
            return True
        usual = name.startswith(_BEGINNINGS) or name.endswith(_ENDS)
        return not SECRET.match(name) and (usual or any(fnmatchcase(name, pattern) for pattern in extra))

    return {"NEURON_RT_NUM_CORES": "1"} | {name: value for name, value in os.environ.items() if passes(name)}
