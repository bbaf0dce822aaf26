"""`python -m impls.nki.modelled_layers`: layers of networks on a model of the device."""

from __future__ import annotations

from impls.nki.modelled_layers import LAYERS, markdown, modelled


def test_a_layer_has_a_row_for_each_generation_dtype_and_direction():
    rows = list(modelled([layer for layer in LAYERS if layer.name.startswith("resnet50.conv5")]))
    found = [line for line in markdown(rows) if line.startswith("| resnet50.conv5.3x3@7 | forward |")]
    assert len(found) == 4
    low, high = (float(part) for part in found[-1].split("|")[6].split(" to "))
    assert 361 / 441 <= low <= high  # of the roofline's products, those that are not with padding
