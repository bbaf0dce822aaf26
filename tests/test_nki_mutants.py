"""Mistakes planted in the text of the NKI kernels: each fails a case or breaks a rule of the emulator, and without it
all cases pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nki_kernels import implementation, tried
from tests.nki_mutants import Mutant, assert_detected, cases

FORWARD, DATA, WEIGHT = "conv_forward", "conv_backward_data", "conv_backward_weight"
PLAIN = "n2 c5 h6 w7 k4 r3 s3 p1 b1"
BEYOND = "n1 c130 h5 w6 k140 r3 s3 p1 b1"
STRIDED = "n2 c4 h7 w8 k6 r3 s3 u2 p1 g2"
GROUPS = "n1 c24 h6 w6 k24 r3 s3 p1 g2 b1"
DEPTHWISE = "n2 c6 h9 w8 k12 r3 s3 p1 g6 b1"
PAIRS = "n1 c16 h7 w7 k16 r3 s3 p1 g8"
LARGE = "n1 c2 h70 w72 k2 r3 s3 p1 g2 b1"
HIGH = "n1 c3 h70 w70 k2 r3 s3 u2 p1"
FAR = "n1 c2 h3 w4 k3 r3 s3 p70 d70"
TURNING = "n1 c2 h9 w50 k3 r3 s2 u2x1 p1"
ASYMMETRIC = "n1 c3 h6 w7 k4 r3 s3 p2:0x0:1"


def _windows(*what: str) -> Mutant:
    return Mutant("conv_windows.py", *what)


def _weight(*what: str) -> Mutant:
    return Mutant("conv_weight.py", *what)


MUTANTS = {
    "filter flipped": _windows(
        "row = residue[0][TAP] + taps[0] *",
        "row = residue[0][TAP] + (residue[0][TAPS] - 1 - taps[0]) *",
        FORWARD,
        PLAIN,
    ),
    "last tap missing": _windows(
        "for column in range(residue[1][TAPS])", "for column in range(max(1, residue[1][TAPS] - 1))", FORWARD, PLAIN
    ),
    "sums onto what was there": _windows("accumulate=(step > 0)", "accumulate=True", FORWARD, PLAIN),
    "every product replaces the sum": _windows("accumulate=(step > 0)", "accumulate=False", FORWARD, PLAIN),
    "tail partitions beyond the channels": _windows("min(size, total - first)", "size", FORWARD, BEYOND),
    "tail channels left out": _windows(
        "range(0, total, size)", "range(0, max(1, total - total % size), size)", FORWARD, BEYOND
    ),
    "tail pixels left out": _windows(
        "pieces(rows, BANK // (images * columns))",
        "pieces(max(1, rows - rows % (BANK // (images * columns))), BANK // (images * columns))",
        FORWARD,
        "n1 c2 h30 w31 k2 r3 s3 p1",
    ),
    "sums beyond a bank": _windows("PARTITIONS, BANK = 128, 512", "PARTITIONS, BANK = 128, 1024", FORWARD, HIGH[:-5]),
    "padding one too small": _windows(
        "first = place[0] * axis[STEP] + axis[LOW]", "first = place[0] * axis[STEP] + axis[LOW] + 1", FORWARD, PLAIN
    ),
    "padding not zeroed": _windows("if inside < high * wide:", "if inside < 0:", FORWARD, PLAIN),
    "last row of the image not loaded": _windows("(extent - 1 - first)", "(extent - 2 - first)", FORWARD, PLAIN),
    "stride taken twice": _windows("axis[STEP] // axis[EVERY]\n", "axis[STEP]\n", FORWARD, "n1 c3 h9 w9 k2 r1 s1 u2"),
    "every run reads the first rows": _windows("skip * axis[STEP] - axis[LOW]", "-axis[LOW]", FORWARD, HIGH),
    "runs of a residue too close": _windows(
        "residue[0][TARGET] + skip * axes[0][SPACING]",
        "residue[0][TARGET] + skip",
        DATA,
        "n1 c2 h70 w72 k3 r3 s3 u2 p1",
    ),
    "residue without its start": _windows(
        "(residue[START] + tap * residue[REACH] + skip",
        "(axis[RESIDUES][0][START] + tap * residue[REACH] + skip",
        DATA,
        "n1 c3 h9 w8 k4 r4 s4 u3 p1",
    ),
    "residue takes neighbouring taps": _windows("taps[0] * residue[0][TAP_STEP]", "taps[0]", DATA, STRIDED),
    "residues beyond the image": _windows(
        "min((place[0] + place[1]) * axis[SPACING], axis[SIZE])", "(place[0] + place[1]) * axis[SPACING]", DATA, STRIDED
    ),
    "positions that a residue lacks": _windows(
        "min(place[0] + place[1], total) - place[0]", "place[1]", DATA, "n1 c3 h7 w7 k4 r3 s3 u2 p1"
    ),
    "gaps of the stride not zeroed": _windows(
        "nisa.memset(dst=filled, value=0.0)", "nisa.memset(dst=filled, value=1.0)", DATA, "n2 c3 h7 w7 k4 r1 s1 u2"
    ),
    "groups share weights": _windows(
        "start = group * targets + first, group * steps[0] +", "start = group * targets + first, ", FORWARD, GROUPS
    ),
    "groups share the image": _windows(
        "channels.append((group * sources + part,", "channels.append((part,", FORWARD, GROUPS
    ),
    "bias of the first filters for all": _windows(
        "load_columns(vectors_of(bias, with_bias), row + at, some)",
        "load_columns(vectors_of(bias, with_bias), row, some)",
        FORWARD,
        BEYOND,
    ),
    "bias forgotten": _windows("if len(biases) > 0:", "if len(biases) > 1:", FORWARD, PLAIN),
    "tap loaded alone from the first place": _windows(
        "row = residue[START] + tap * residue[REACH]\n", "row = residue[START]\n", FORWARD, FAR
    ),
    "neighbour's channel": _windows(
        "found.append((some[0] * sources + part,", "found.append((some[0] * sources,", FORWARD, PAIRS
    ),
    "multiplier reads the next channel": _windows(
        "pattern.append([0, targets])", "pattern.append([area, targets])", FORWARD, DEPTHWISE
    ),
    "first product left out": _windows("if step == 0:", "if step == 1:", FORWARD, DEPTHWISE),
    "bf16 sums": Mutant(
        "conv_windows.py",
        "sums = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)",
        "sums = nl.ndarray(shape, dtype=tensors[0].dtype, buffer=nl.sbuf)",
        FORWARD,
        DEPTHWISE,
        "fixed",
        "bf16",
    ),
    "every tile replaces the weight gradient": _windows("    if first:\n", "    if True:\n", WEIGHT, LARGE),
    "weight gradient of one image": _windows(
        "data=products, axis=(1, 2, 3)", "data=products[0:count, 0:1], axis=(1, 2, 3)", WEIGHT, DEPTHWISE
    ),
    "bf16 partial weight gradients": Mutant(
        "conv_windows.py",
        "sums = nl.ndarray((count, channels, taps), dtype=nl.float32",
        "sums = nl.ndarray((count, channels, taps), dtype=gradient.dtype",
        WEIGHT,
        LARGE,
        "fixed",
        "bf16",
    ),
    "every strip replaces the sum": _weight(
        "                    accumulate=(started or turn > 0)",
        "                    accumulate=(turn > 0)",
        WEIGHT,
        "n1 c3 h20 w20 k4 r3 s3 p1",
    ),
    "turns read the first row": _weight("first = turn * stride[0] // every", "first = 0", WEIGHT, TURNING),
    "turns without the stride": _weight("first = turn * stride[0] // every", "first = turn", WEIGHT, TURNING),
    "padding of the other axis": _weight("min(before[1], wide)", "min(before[0], wide)", WEIGHT, ASYMMETRIC),
    "padding left unwritten": _weight(
        "clear(padded, (0, top), (0, wide))", "clear(padded, (0, 0), (0, wide))", WEIGHT, PLAIN
    ),
    "first image for all": _weight("offset=start + number * steps[0]", "offset=start", WEIGHT, PLAIN),
    "dilation forgotten": _weight(
        "tap_row * dilation[0]) * steps[1]", "tap_row) * steps[1]", WEIGHT, "n1 c1 h60 w30 k2 r28 s20 d2x1"
    ),
    "taps interchanged": _weight("out.permute((0, 2, 3, 1))", "out.permute((0, 3, 2, 1))", WEIGHT, PLAIN),
    "bias gradient of the last strip": _weight(
        "moving=ones, accumulate=(started or turn > 0)",
        "moving=ones, accumulate=False",
        WEIGHT,
        "n1 c3 h20 w20 k4 r3 s3 p1 b1",
    ),
    "channels of the first group": _weight("(first_channel + channel)", "channel", WEIGHT, GROUPS),
    "gradient of the first group": _weight("(image * channels + first)", "(image * channels)", WEIGHT, GROUPS),
    "gradient one pixel on": _weight(
        "    nisa.dma_copy(dst=tile, src=dy.ap(pattern=pattern, offset=start))\n    return tile",
        "    nisa.dma_copy(dst=tile, src=dy.ap(pattern=pattern, offset=start + 1))\n    return tile",
        WEIGHT,
        PLAIN,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_mistake_fails(name: str, tmp_path: Path):
    assert_detected(MUTANTS[name], tmp_path)


@pytest.mark.parametrize(("operator", "problem", "distribution", "dtype"), cases(MUTANTS.values()))
def test_without_it_the_case_passes(operator: str, problem: str, distribution: str, dtype: str):
    verdict = tried(implementation(), operator, problem, distribution, dtype)
    assert verdict.status == "pass", verdict.reason
