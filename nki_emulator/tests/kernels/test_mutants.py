"""Mistakes planted in the text of the NKI kernels: each fails a case or breaks a rule of the emulator, and without it
all cases pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from nki_emulator.tests.kernels.nki_kernels import implementation, tried
from nki_emulator.tests.kernels.nki_mutants import Mutant, assert_detected, cases

FORWARD, DATA, WEIGHT = "conv_forward", "conv_backward_data", "conv_backward_weight"
PLAIN = "n2 c5 h6 w7 k4 r3 s3 p1 b1"
BEYOND = "n1 c130 h5 w6 k140 r3 s3 p1 b1"
STRIDED = "n2 c4 h7 w8 k6 r3 s3 u2 p1 g2"
GROUPS = "n1 c24 h6 w6 k24 r3 s3 p1 g2 b1"
DEPTHWISE = "n2 c6 h9 w8 k12 r3 s3 p1 g6 b1"
PAIRS = "n1 c16 h7 w7 k16 r3 s3 p1 g8"
LARGE = "n1 c2 h70 w72 k2 r3 s3 p1 g2 b1"
HIGH = "n1 c12 h70 w70 k4 r3 s3 u2 p1 g2"
FAR = "n1 c2 h3 w4 k3 r3 s3 p70 d70"
TURNING = "n1 c2 h9 w50 k3 r3 s2 u2x1 p1"
ASYMMETRIC = "n1 c3 h6 w7 k4 r3 s3 p2:0x0:1"
FOLDED = "n1 c140 h5 w6 k140 r1 s1"
JOINED = "n2 c256 h5 w4 k256 r3 s3 p1 b1"
TAPS = "n1 c3 h9 w8 k64 r3 s3 p1 b1"
LATTICES = "n1 c3 h15 w16 k64 r7 s7 u2 p3"
MANY = "n1 c64 h40 w20 k64 r3 s3 p1 b1"
SEVERAL = "n1 c2 h24 w40 k2 r3 s3 p1 g2"
BROAD = "n1 c64 h3 w260 k32 r3 s3 p1"
UNEVEN = "n1 c64 h41 w20 k64 r3 s3 p1 b1"
BANDS = "n1 c20 h20 w30 k40 r3 s3 p1 b1"
PAIRED = "n2 c20 h9 w7 k32 r3 s3 p1 b1"
WIDE = "n1 c1 h60 w30 k2 r28 s20 d2x1"


def _windows(*what: str) -> Mutant:
    return Mutant("conv_windows.py", *what)


def _weight(*what: str) -> Mutant:
    return Mutant("conv_weight.py", *what)


def _patterns(*what: str) -> Mutant:
    """Of what computes again where a NaN or an infinity was found."""
    text, instead, operator, problem = what
    return Mutant("conv_weight.py", text, instead, operator, problem, "special")


def _packed(*what: str) -> Mutant:
    return Mutant("conv_packed.py", *what)


MUTANTS = {
    "filter flipped": _windows(
        "row = residue[0][TAP] + taps[0] *",
        "row = residue[0][TAP] + (residue[0][TAPS] - 1 - taps[0]) *",
        FORWARD,
        GROUPS,
    ),
    "last tap missing": _windows(
        "for column in range(residue[1][TAPS])", "for column in range(max(1, residue[1][TAPS] - 1))", FORWARD, GROUPS
    ),
    "sums onto what was there": _windows("accumulate=(step > 0 or not started)", "accumulate=True", FORWARD, BEYOND),
    "every product replaces the sum": _windows(
        "accumulate=(step > 0 or not started)", "accumulate=False", FORWARD, BEYOND
    ),
    "sums that no tap starts": _windows(
        "    if not started:\n        start_sums(sums)", "", FORWARD, "n2 c12 h2 w3 k4 r2 s2 p5 b1 g2"
    ),
    "tail partitions beyond the channels": _windows("min(size, total - first)", "size", FORWARD, BEYOND),
    "tail channels left out": _windows(
        "range(0, total, size)", "range(0, max(1, total - total % size), size)", FORWARD, BEYOND
    ),
    "tail pixels left out": _windows(
        "pieces(rows, BANK // (images * columns))",
        "pieces(max(1, rows - rows % (BANK // (images * columns))), BANK // (images * columns))",
        FORWARD,
        "n1 c12 h30 w31 k4 r3 s3 p1 g2",
    ),
    "sums beyond a bank": _windows(
        "PARTITIONS, BANK = 128, 512", "PARTITIONS, BANK = 128, 1024", FORWARD, "n1 c12 h70 w70 k4 r3 s3 g2"
    ),
    "padding one too small": _windows(
        "first = place[0] * axis[STEP] + axis[LOW]", "first = place[0] * axis[STEP] + axis[LOW] + 1", FORWARD, GROUPS
    ),
    "tap beside its positions": _windows("return (low, high - low, 1)", "return (0, high - low, 1)", FORWARD, BEYOND),
    "tap beside the window": _windows("(first + low * step - held[0],", "(first + low * step,", FORWARD, HIGH),
    "filters in another order": _windows("(first + member, rows, fold)", "(first, rows, fold)", FORWARD, FOLDED),
    "every part from the first source": _windows(
        "source = (parts[number][0] - parts[begin][0], parts[number][1])",
        "source = (0, parts[number][1])",
        FORWARD,
        JOINED,
    ),
    "joined sources as if they were not": _windows(
        "last = source[0] + (size - 1) * source[1] + 1",
        "source = (source[0] * size, 1)\n    last = source[0] + size",
        FORWARD,
        JOINED,
    ),
    "joined targets as if they were not": _windows(
        "end = first + (count - 1) * step_of_targets + 1",
        "first, step_of_targets = first * count, 1\n    end = first + count",
        DATA,
        JOINED,
    ),
    "last row of the image not loaded": _windows("(extent - 1 - first)", "(extent - 2 - first)", FORWARD, GROUPS),
    "stride taken twice": _windows(
        "axis[STEP] // axis[EVERY]\n", "axis[STEP]\n", FORWARD, "n1 c12 h9 w130 k4 r1 s1 u2 g2"
    ),
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
        "data = row[0:1, at : at + (some - 1) * step + 1 : step]",
        "data = row[0:1, 0 : (some - 1) * step + 1 : step]",
        FORWARD,
        BEYOND,
    ),
    "bias forgotten": _windows("if len(biases) > 0:", "if len(biases) > 1:", FORWARD, GROUPS),
    "tap loaded alone from the first place": _windows(
        "row = residue[START] + tap * residue[REACH]\n", "row = residue[START]\n", FORWARD, FAR
    ),
    "neighbour's channel": _windows(
        "found.append((some[0] * sources + part,", "found.append((some[0] * sources,", FORWARD, PAIRS
    ),
    "multiplier reads the next channel": _windows(
        "pattern.append([0, targets])", "pattern.append([area, targets])", FORWARD, DEPTHWISE
    ),
    "first product left out": _windows("if started and step == 0:", "if started and step == 1:", FORWARD, DEPTHWISE),
    "bf16 sums": Mutant(
        "conv_windows.py",
        "product = nl.ndarray(data.shape, dtype=nl.float32",
        "product = nl.ndarray(data.shape, dtype=data.dtype",
        FORWARD,
        DEPTHWISE,
        "fixed",
        "bf16",
    ),
    "every run of channels reads the first rows": _windows(
        "add_products(tensors, weights, some, skip,", "add_products(tensors, weights, some, 0,", FORWARD, LARGE
    ),
    "every run of the gradient reads the first rows": _windows(
        "channels), part, some_rows, skip, axes", "channels), part, some_rows, 0, axes", WEIGHT, LARGE
    ),
    "every run replaces the weight gradient": _windows("first and skip == 0", "first", WEIGHT, SEVERAL),
    "every tile replaces the weight gradient": _windows("    if first:\n", "    if True:\n", WEIGHT, LARGE),
    "weight gradient of one image": _windows(
        "dst=products, op=nl.copy, data=products,",
        "dst=products[0:count, 0:1], op=nl.copy, data=products[0:count, 0:1],",
        WEIGHT,
        DEPTHWISE,
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
    "every turn replaces the sum": _weight(
        "nisa.nc_matmul(dst=to, stationary=stationary, moving=moving, accumulate=started)\n\n\ndef add_pair",
        "nisa.nc_matmul(dst=to, stationary=stationary, moving=moving, accumulate=False)\n\n\ndef add_pair",
        WEIGHT,
        BANDS,
    ),
    "bands too close": _weight("step = turns * stride[0]", "step = stride[0]", WEIGHT, BANDS),
    "turns of dy as bands": _weight(
        "part, turn:rows:turns, column", "part, turn * count : turn * count + count, column", WEIGHT, BANDS
    ),
    "rows left over left out": _weight("if rows > whole:", "if rows > rows:", WEIGHT, "n1 c5 h11 w50 k40 r3 s3 p1"),
    "window of the first row": _weight("top, left = slot * every, columns", "top, left = 0, columns", WEIGHT, BANDS),
    "columns of a tap": _weight(
        "columns[0] * stride[1] + tap * dilation[1]\n            bottom",
        "columns[0] * stride[1] + tap\n            bottom",
        WEIGHT,
        "n2 c20 h9 w9 k40 r3 s3 p2 d2",
    ),
    "border not zeroed": _weight("            clear_border(padded, (top, bottom), (left, right))\n", "", WEIGHT, BANDS),
    "second turn one tap off": _weight("src=sums[tap + 1][targets", "src=sums[tap][targets", WEIGHT, PAIRED),
    "one turn of each pair": _weight(
        "data1=to, data2=sums[tap][0:targets], op=nl.add", "data1=to, data2=to, op=nl.maximum", WEIGHT, PAIRED
    ),
    "dbias of one turn of each pair": _weight(
        "end = min(turn + 2, strip[4]) if paired else turn + 1", "end = turn + 1", WEIGHT, PAIRED
    ),
    "joined channels of x one after another": _weight(
        "transpose_onto(tiles[number], parts[begin + part][0], step, views, spoilt)",
        "transpose_onto(tiles[number], part * some, 1, views, spoilt)",
        WEIGHT,
        JOINED,
    ),
    "joined filters one after another": _weight(
        "dw.shape[1] * high * wide * step, count]", "dw.shape[1] * high * wide, count]", WEIGHT, JOINED
    ),
    "NaN found and left": Mutant(
        "conv_weight.py", "        nl.while_loop(register, repeat)\n", "", WEIGHT, BANDS, "special"
    ),
    "taps of a group interchanged": _packed(".permute((0, 3, 2, 1))", ".permute((0, 2, 3, 1))", FORWARD, LATTICES),
    "group one row off": _packed(
        "shift = (column * rows + row) * channels, down * wide",
        "shift = (column * rows + row) * channels, wide",
        FORWARD,
        TAPS,
    ),
    "lattices interchanged": _packed("planes[a * v + b]", "planes[b * v + a]", FORWARD, LATTICES),
    "lattice without its border": _packed(
        "        if rows[1] > rows[0] and columns", "        if rows[1] > rows[0] + 99 and columns", FORWARD, TAPS
    ),
    "weights of dx not flipped": _packed(
        "    if flipped:\n        return (high - 1 - row)",
        "    if not flipped:\n        return (high - 1 - row)",
        DATA,
        MANY,
    ),
    "bands of positions at the first": _packed("runs[run][0] * wide + at, count", "at, count", FORWARD, MANY),
    "second run of rows as the first": _packed("runs[run][0] * wide", "runs[0][0] * wide", FORWARD, MANY),
    "sums of both runs from the first": _packed("both[run * targets : (run + 1)", "both[0 : (0 + 1)", FORWARD, MANY),
    "rows that make no whole run left out": _packed("if rows % size > 0:", "if rows % size > rows:", FORWARD, UNEVEN),
    "one row without its last columns": _packed(
        "kept = axes[1][SIZE] if rows == 1", "kept = axes[1][SIZE] - 1 if rows == 1", FORWARD, BROAD
    ),
    "last row's columns from the first group": _packed(
        "groups[1 if is_rest(axes, rows_of_step) else 0]", "groups[0]", FORWARD, MANY
    ),
    "last row's columns side by side": _packed(
        "column * channels, column * axes[1][REACH]", "column * channels, 0", FORWARD, MANY
    ),
    "step reads the first group": _packed(
        "held[0:size, first + shift : first + shift + count]", "held[0:size, first : first + count]", FORWARD, MANY
    ),
    "NaN of positions left": Mutant(
        "conv_packed.py", "        nl.while_loop(register, repeat)\n", "", FORWARD, MANY, "special"
    ),
    "NaN of sums not looked for": Mutant(
        "conv_packed.py",
        "    if len(spoilt) > 0:\n        heads",
        "    if len(spoilt) > 9:\n        heads",
        FORWARD,
        MANY,
        "special",
    ),
    "every strip replaces the sum": _patterns(
        "                    accumulate=(started or turn > 0)",
        "                    accumulate=(turn > 0)",
        WEIGHT,
        "n1 c3 h20 w20 k4 r3 s3 p1",
    ),
    "turns read the first row": _patterns("first = turn * stride[0] // every", "first = 0", WEIGHT, TURNING),
    "turns without the stride": _patterns("first = turn * stride[0] // every", "first = turn", WEIGHT, TURNING),
    "padding of the other axis": _patterns("min(before[1], wide)", "min(before[0], wide)", WEIGHT, ASYMMETRIC),
    "padding left unwritten": _patterns(
        "clear(padded, (0, top), (0, wide))", "clear(padded, (0, 0), (0, wide))", WEIGHT, PLAIN
    ),
    "first image for all": _patterns("offset=start + number * steps[0]", "offset=start", WEIGHT, PLAIN),
    "dilation forgotten": _patterns(
        "tap_row * dilation[0]) * steps[1]", "tap_row) * steps[1]", WEIGHT, "n1 c1 h60 w30 k2 r28 s20 d2x1"
    ),
    "taps interchanged": _patterns("out.permute((0, 2, 3, 1))", "out.permute((0, 3, 2, 1))", WEIGHT, PLAIN),
    "bias gradient of the last strip": _patterns(
        "moving=ones, accumulate=(started or turn > 0)",
        "moving=ones, accumulate=False",
        WEIGHT,
        "n1 c3 h20 w20 k4 r3 s3 p1 b1",
    ),
    "channels of the first group": _patterns("(first_channel + channel)", "channel", WEIGHT, GROUPS),
    "gradient of the first group": _patterns("(image * channels + first)", "(image * channels)", WEIGHT, GROUPS),
    "gradient one pixel on": _patterns(
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
