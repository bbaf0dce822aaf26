"""Tensors as npz files that any language can load: plain little-endian numbers, the same bytes on every machine."""

from __future__ import annotations

import hashlib
import io
import zipfile

import numpy as np

from conformance.dtypes import WHOLE
from conformance.inputs.drawing import Recipe
from conformance.inputs.expectation import Expectation
from conformance.inputs.manifest import SEED, canonical
from conformance.operators import Arrays

EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip file can hold."""
MEMBERS = 16
"""Largest number of members (inputs and outputs) of a file that is read: a member takes 0.2 ms, whatever its size."""


def file_name(recipe: Recipe) -> str:
    """Return a recipe's file name: its key with `_` for blanks and `.` for colons; without the seed if it is `SEED`."""
    descriptor = recipe.workload.geometry.descriptor.replace(" ", "_").replace(":", ".")
    fields = [recipe.workload.operator.name, descriptor, recipe.dtype, recipe.distribution]
    return "-".join(fields + [f"seed{recipe.seed}"] * (recipe.seed != SEED)) + ".npz"


def arrays(expected: Expectation) -> Arrays:
    """Return the arrays of a recipe's file: `inputs/NAME` in float32 (fp64 and integer dtypes: float64), `outputs/NAME`
    in float64."""
    dtype = "<f8" if expected.recipe.dtype in ("fp64", *WHOLE) else "<f4"
    inputs = {f"inputs/{name}": canonical(array).astype(dtype) for name, array in expected.inputs.items()}
    return inputs | {f"outputs/{name}": canonical(array) for name, array in expected.reference.items()}


def encode(tensors: Arrays) -> bytes:
    """Return the bytes of an npz file. It is not compressed, because a compressor's output depends on its version."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in tensors.items():
            member = zipfile.ZipInfo(f"{name}.npy", EPOCH)
            member.create_system, member.external_attr = 3, 0o644 << 16
            npy = io.BytesIO()
            np.lib.format.write_array(npy, array, version=(1, 0), allow_pickle=False)
            archive.writestr(member, npy.getvalue())
    return buffer.getvalue()


def decode(content: bytes) -> Arrays:
    """Return the arrays of an npz file that `encode` wrote, in about as much memory as the file is long. Raises
    ValueError for other content."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
        if len(members) > MEMBERS:
            raise ValueError(f"it has {len(members):,} members")
        # a compressed member can unpack to a thousand times its length, and many members can share their bytes
        if any(member.compress_type for member in members) or sum(member.file_size for member in members) > len(
            content
        ):
            raise ValueError("its members are compressed, or longer than the file")
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return {name: np.asarray(file[name]) for name in file.files}
    except Exception as problem:  # a damaged archive raises whatever its first odd byte leads to
        raise ValueError(f"not a readable npz file ({type(problem).__name__}: {str(problem)[:200]!a})") from None


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
