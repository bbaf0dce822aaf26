"""Tests that the SDK's documentation carries whose outcome is not simply right: why, and the page.

Keys are files, or a file and a method, of the folders `general/nki/test` (SDK 2.26) and `nki/test` (SDK 2.32).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Own:
    """What is known of a test.

    through          format of an intermediate result, which the tolerance follows
    partial_outputs  it looks at a part of an output that its kernel writes in part
    refused          rules of which the emulator names one
    page             that forbids what the kernel does
    """

    through: str | None = None
    partial_outputs: bool = False
    refused: tuple[str, ...] = ()
    page: str = ""


_TRUTH = Own(
    refused=("tensor-value",), page="NKI errors, SDK 2.26: err_ambiguous_tensor_truth_value (`if b` of a tensor)"
)
_OUTSIDE = Own(
    refused=("out-of-bounds",),
    page="nki.isa.dma_copy, SDK 2.26: oob_mode.error raises; the test expects an IndexError",
)
OWN = {
    "test_nki_isa_activation.py::test_activation": Own(through="bfloat16"),
    "test_nki_isa_dma_copy.py::test_indirect_load_oob_err_negative": _OUTSIDE,
    "test_nki_isa_dma_copy.py::test_indirect_store_oob_err_negative": _OUTSIDE,
    "test_nki_isa_dropout.py::test_dropout": Own(
        refused=("operand",), page="nki.isa.dropout, SDK 2.26: prob is a probability; the test passes up to 100"
    ),
    "test_nki_isa_nc_match_replace8.py::test_nc_match_replace_indices8_mask": Own(
        refused=("tensor-value",), page="NKI Known Issues, SDK 2.26: `and` does not join masks"
    ),
    "test_nki_isa_range_select.py::test_range_select_example": Own(
        refused=("output-missing",),
        page="Getting Started with NKI, SDK 2.26: what is returned is in device memory; here it is in SBUF",
    ),
    **{
        f"test_nki_isa_tensor_scalar_cumulative.py::test_tensor_scalar_cumulative_load_reduce{i}": _TRUTH
        for i in (1, 2, 3)
    },
    "test_nki_nl_load_store_indirect.py": Own(partial_outputs=True),
}
