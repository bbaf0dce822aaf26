"""Where the goldens and the suite's own implementations lie: inside an installed package, beside it in a checkout."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent
_SHIPPED = PACKAGE / "shipped"
CHECKOUT = None if _SHIPPED.is_dir() else PACKAGE.parent
"""The root of the repository; None where the package was installed from a wheel."""
GOLDEN = (CHECKOUT or _SHIPPED) / "golden"
FINDINGS = CHECKOUT / "docs" / "findings" if CHECKOUT else _SHIPPED / "findings"
"""Defects of other people's libraries, a page each."""
IMPLS = (CHECKOUT or _SHIPPED) / "impls"
"""Implementations that are verified unless a project says otherwise."""
ENGINES = IMPLS / "engines"
"""Libraries whose dependencies exclude one another: each is verified where it is named, in its own environment."""

OWN_NAMES = {
    name: f"impls/{file}"
    for file, names in {
        "jax_native": "jax-cpu jax-cuda jax-tpu",
        "neuron_jax.py": "jax-neuronx",
        "neuron_torch.py": "torch-neuronx",
        "neuronx_conv": "neuronx-conv neuronx-conv@emu",
        "nki": "nki nki@sim nki@sim-gen3 nki@emu nki@emu-gen3",
        "numba_cpu": "numba-cpu",
        "numba_cuda": "numba-cuda-direct numba-cuda-tiled numba-cuda-igemm "
        "numba-cuda-direct@sim numba-cuda-tiled@sim numba-cuda-igemm@sim",
        "numpy_direct": "numpy-direct",
        "torch_native": "torch-cpu torch-cuda torch-fused-cpu torch-fused-cuda",
    }.items()
    for name in names.split()
}
"""Implementation that the suite brings -> its file. A file whose framework is not here cannot be loaded to ask it."""


def of_family(family: str, name: str) -> Path:
    """Return the path of a text of an operator family: `problems.txt` or `ranking.txt`."""
    return PACKAGE / "operators" / family / name
