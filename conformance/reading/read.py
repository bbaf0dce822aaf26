"""The arithmetic of a kernel, as far as calls with chosen inputs tell.

Each property is read by one set of calls and confirmed by another, with other numbers or at other terms; what the
second does not confirm is unknown.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conformance.dtypes import FORMATS, FP8_BOTH, WHOLE
from conformance.operators import Operator
from conformance.operators.requantized import Requantized
from conformance.reading.chosen import Sum, Sums, UnreadableError, adds
from conformance.reading.problems import WINDOW
from conformance.reading.tree import Node, NoTreeError, built, leaves_of

MOST_LEVELS = 8
"""Most additions on the way from a term to the result whose bits are read."""
ROWS = 14
"""Rows of results on which transforms are looked for: two tiles of F(6x6, 3x3)."""
AGAINST = "two probes contradict each other"
OF_IMAGES = ("conv_forward", "conv_backward_data", "conv_transpose_forward", "conv_transpose_backward_data")
"""Operators whose windows slide over an image, which transforms are for."""
WIDE = 24
"""Bits of fp32's sums."""

Factors = tuple[float, float]
Problem = Callable[[str], Sums | None]
"""Takes what a problem is for (`terms`, `window`, `bias`, `long`), and returns the sums of the smallest that the kernel
supports."""


@dataclass
class Reading:
    """The arithmetic of a kernel in one dtype. None, or 0, stands for what is unknown.

    nothing         why nothing was read
    changes         whether results change from call to call; then nothing else is read
    wrong           whether sums of small whole numbers are wrong; then nothing else is read
    inputs          exact, a format that inputs are rounded to, or their parts: as in a contract
    input_bits      significant bits of inputs, with the leading one
    input_rounding  nearest or zero, where inputs are rounded
    tree            order of summation
    bits            significant bits of the accumulator, with the leading one
    rounding        of the accumulator: nearest, zero, down or up
    group           number of terms that are added at once; 1 if none are
    group_bits      fraction bits, below the largest of them, of terms that are added at once
    group_rounding  of these terms: nearest, zero, down or up
    partial_sums    number of partial sums
    partial_bits    significant bits in which partial sums are stored, where they are fewer than the accumulator's
    promoted        number of terms after which an accumulator of few bits is added to a wider one
    promoted_bits   significant bits of the wider one
    unpromoted      number of terms of a sum without any promotion
    algorithm       direct, winograd-f2, winograd-f4, winograd-f6 or fft; running-sums or summed-area of averages
    inputs_flushed, results_flushed  whether subnormal ones become zero
    flushed_operand  operand whose subnormal numbers alone become zero; empty if both operands are treated alike
    bias            before or after the sum is rounded to the dtype
    result_rounding of sums to fewer bits, those of the results: nearest, zero, down or up
    ties            of a requantized result: even, away or up; or gemmlowp
    overflow        of a requantized result: saturates or nonfinite
    """

    operator: str
    dtype: str
    nothing: str = ""
    changes: bool = False
    wrong: bool = False
    inputs: str | None = None
    input_bits: int = 0
    input_rounding: str | None = None
    tree: Node | None = None
    bits: int = 0
    rounding: str | None = None
    group: int = 0
    group_bits: int = 0
    group_rounding: str | None = None
    partial_sums: int = 0
    partial_bits: int = 0
    promoted: int = 0
    promoted_bits: int = 0
    unpromoted: int = 0
    algorithm: str | None = None
    inputs_flushed: bool | None = None
    results_flushed: bool | None = None
    flushed_operand: str = ""
    bias: str | None = None
    result_rounding: str | None = None
    ties: str | None = None
    overflow: str | None = None
    problems: dict[str, str] = field(default_factory=dict)
    """What a problem was for -> its descriptor."""
    unknown: dict[str, str] = field(default_factory=dict)
    """Property -> why it is unknown."""
    agreeing: Counter[str] = field(default_factory=Counter)
    """Property -> number of probes that agree on it."""
    calls: int = 0

    def agree(self, name: str, values: Sequence[Any]) -> None:
        """Set a property to the value on which all probes agree."""
        if len({*values}) == 1 and values[0] is not None:
            setattr(self, name, values[0])
            self.agreeing[name] = len(values)
        else:
            self.unknown[name] = AGAINST if len({*values}) > 1 else "it follows no rule that is known"


def read(operator: Operator, dtype: str, problem: Problem) -> Reading:
    """Return the arithmetic of a kernel. Raises what its calls do."""
    reading, opened = Reading(operator.name, dtype), list[Sums]()

    def sums_of(purpose: str) -> Sums | None:
        sums = problem(purpose)
        if sums is not None:
            opened.append(sums)
            reading.problems[purpose] = sums.workload.geometry.descriptor
        return sums

    if not adds(operator):
        reading.nothing = "its results are neither sums of products nor averages"
    elif dtype in WHOLE and not isinstance(operator, Requantized):
        reading.nothing = "sums of whole numbers are exact in every order"
    elif (sums := sums_of("terms")) is None:
        reading.nothing = "it supports no small problem whose sums have 32 to 128 terms"
    else:
        try:
            _read(reading, sums.at(), sums_of)
        except UnreadableError as error:
            reading.nothing = str(error)
    reading.calls = sum(sums.calls for sums in opened)
    return reading


def _read(reading: Reading, of: Sum, sums_of: Problem) -> None:
    if reading.dtype in WHOLE:
        read_ties(reading, of)
        return
    operator = of.sums.workload.operator
    if isinstance(operator, Requantized):
        _attempt(reading, "overflow", read_overflow, of)
    if _is_wrong(of):
        reading.wrong, reading.nothing = True, "sums of small whole numbers are wrong: verify it first"
        return
    if _changes(of):
        reading.changes, reading.nothing = True, "results change from call to call"
        return
    if reading.operator in OF_IMAGES:
        windows = sums_of("window")
        if windows is None:
            reading.unknown["algorithm"] = "it supports no window of 3x3 that a transform is for"
        else:
            _attempt(reading, "algorithm", read_transforms, windows)
    elif not of.sums.averages and "matmul" not in reading.operator:
        reading.unknown["algorithm"] = "it is read off forward convolutions and gradients of images only"
    transformed = reading.algorithm != "direct" and reading.problems.get("window") == reading.problems["terms"]
    window = math.prod(getattr(of.sums.workload.geometry, "window", ()))
    if transformed or (window > 1 and reading.algorithm not in ("direct", None)):
        reading.unknown |= dict.fromkeys(("order", "bits", "inputs"), "what is added are transforms of inputs")
    else:
        _attempt(reading, "order", read_order, of)
        _attempt(reading, "bits", read_accumulator, of)
        _attempt(reading, "inputs", read_inputs, of)
    _attempt(reading, "subnormals", read_subnormals, of)
    _attempt(reading, "result_rounding", read_results, of)
    if reading.operator == "avg_pool_forward" and (averages := sums_of("window")) is not None:
        _attempt(reading, "algorithm", read_prefix_sums, of, averages)
    if "bias" in operator.arguments and not isinstance(operator, Requantized):
        _attempt(reading, "bias", read_bias, of, sums_of)
    if reading.bits and reading.bits < WIDE:
        _attempt(reading, "promoted", read_promotion, sums_of)


def _attempt(reading: Reading, name: str, step: Callable[..., None], *arguments: Any) -> None:
    try:
        step(reading, *arguments)
    except UnreadableError as error:
        reading.unknown[name] = str(error)


def _is_wrong(of: Sum) -> bool:
    """Return whether a sum of small whole numbers is wrong by more than any rounding makes it."""
    signs = np.where(np.random.default_rng(0).permutation(of.terms) % 2, 1.0, -1.0)
    signs[:4] = 1, 1, 1, 1
    signs[4:] *= -1 if signs.sum() < 0 else 1
    exact = float(signs.sum())
    return not abs(of.of(dict(enumerate(signs))) - exact) <= 0.1 * max(1.0, abs(exact))


def _changes(of: Sum) -> bool:
    """Return whether the bits of a sum change from call to call."""
    plan, draw = of.sums.plan, np.random.default_rng(1)
    drawn = draw.uniform(1, 2, (of.terms, 2)) * draw.choice((-1, 1), (of.terms, 2))
    numbers = np.empty_like(drawn)
    for place, name in enumerate((plan.selected, plan.coded)):  # operands may differ in format
        numbers[:, place] = drawn[:, place].astype(of.sums.zeros[name].dtype)
    if of.sums.averages:
        numbers[:, 1] = 1
    return len({of.of_factors(dict(enumerate(map(tuple, numbers)))) for _ in range(6)}) > 1


def read_order(reading: Reading, of: Sum) -> None:
    """Read the tree of a sum. Raises UnreadableError."""
    if of.terms >= 1 << of.precision:
        raise UnreadableError(f"results of {of.precision} bits do not hold the number of terms")
    if of.sums.is_simulated:
        raise UnreadableError("it takes hundreds of calls, for which a simulator is too slow")
    reason = "no term is lost beside any other: sums are exact, or are kept wide"
    pairs = [*_pairs(of.terms)]
    for large, small in of.masks:
        unit = 2.0**small

        def below(first: int, second: int, unit: float = unit, large: int = large) -> int:
            kept = of.of({first: 2.0**large, second: -(2.0**large)}, rest=unit) / unit
            if not math.isfinite(kept) or kept != round(kept) or not 0 <= kept <= of.terms - 2:
                raise NoTreeError("the terms that are lost are no whole number")
            return of.terms - int(kept)

        try:
            if {below(0, of.terms - 1), below(0, 1), below(of.terms - 2, of.terms - 1)} == {2}:
                continue
            tree = built(of.terms, below)
            if any(below(*pair) != _below(tree, *pair) for pair in pairs):
                raise NoTreeError(AGAINST)
        except (NoTreeError, UnreadableError) as error:
            reason = str(error)
            continue
        reading.tree, reading.partial_sums = tree, len(tree.partial_sums)
        reading.group = 1 if all(len(node.children) == 2 for node in tree.all) else tree.group
        reading.agreeing.update(dict.fromkeys(("order", "partial_sums", "group"), len(pairs)))
        return
    raise UnreadableError(reason)


def _pairs(terms: int) -> Iterator[tuple[int, int]]:
    """Yield pairs of terms for a second look at a tree."""
    draw = np.random.default_rng(terms)
    for _ in range(16):
        first, second = sorted(draw.choice(terms, 2, replace=False).tolist())
        yield second, first


def _below(tree: Node, first: int, second: int) -> int:
    for node in tree.nodes:
        if first in node.leaves and second in node.leaves:
            return _below(node, first, second)
    return len(tree.leaves)


Triple = tuple[int, int, int]
"""Terms at which a large number, a small one and the large one's negative stand."""


def first_lost(of: Sum, triple: Triple) -> int:
    """Return the exponent of the smallest power of two beside which 1 is lost before its negative arrives. Raises
    UnreadableError if there is none in the range of numbers."""
    first, small, last = triple
    widest, _ = of.reach

    def keeps(exponent: int) -> bool:
        return of.in_units({first: 2.0**exponent, small: 1.0, last: -(2.0**exponent)}) == 1

    low, high = 0, widest
    if keeps(high):
        raise UnreadableError(f"the accumulator has more than {widest} bits")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    if low == 0:
        raise UnreadableError("a sum of three terms is wrong")
    return high


RULES: dict[tuple[float, ...], str] = {
    (0, 2, 0, -2): "nearest",
    (0, 0, 0, 0): "zero",
    (0, 0, -2, -2): "down",
    (2, 2, 0, 0): "up",
}
"""What becomes of 1/2 and 3/2 beside a number whose last bit is 2, and of their negatives beside its negative."""


def rounding_at(of: Sum, triple: Triple, exponent: int) -> str | None:
    """Return how a sum is rounded whose last bit is 2, beside a power of two; None if it is in no way of `RULES`."""
    first, small, last = triple
    results = []
    for sign, value in itertools.product((1, -1), (0.5, 1.5)):
        large = sign * 2.0**exponent
        results.append(of.in_units({first: large, small: sign * value, last: -large}))
    return RULES.get(tuple(results))


def _meeting(way: Sequence[Node], level: int) -> list[Triple]:
    """Return terms with which the bits are read that leave the addition at a level of a way: two that meet in it, and
    one that comes with the next addition."""
    node, above = way[level], way[level + 1]
    later = [leaf for child in above.children if child is not node for leaf in leaves_of(child)]
    first, last = leaves_of(node.children[0]), leaves_of(node.children[-1])
    return [(first[0], last[0], later[0]), (last[-1], first[-1], later[-1])]


def read_accumulator(reading: Reading, of: Sum) -> None:
    """Read bits and rounding of sums along a way through the tree, and of what is added at once. Raises
    UnreadableError."""
    tree = reading.tree
    if tree is None:
        _read_without_tree(reading, of)
        return
    way = tree.way
    for node in way:
        if len(node.children) > 2:
            terms = [leaves_of(child)[0] for child in node.children]
            inside = [(terms[0], terms[1], terms[2]), (terms[-1], terms[-2], terms[-3])]
            reading.agree("group_bits", [first_lost(of, triple) - 1 for triple in inside])
            if reading.group_bits:
                reading.agree("group_rounding", [rounding_at(of, t, reading.group_bits + 1) for t in inside])
            break
    if len(way) < 2:
        raise UnreadableError("all terms are added at once")
    top = len(way) - 2
    levels = sorted({*np.linspace(0, top, MOST_LEVELS - 3).astype(int).tolist(), *range(max(0, top - 2), top + 1)})
    bits = dict[int, int]()
    for level in levels:
        counts = {first_lost(of, triple) for triple in _meeting(way, level)}
        if len(counts) > 1:
            raise UnreadableError(AGAINST)
        bits[level] = counts.pop()
    usual = max(bits.values())
    low = [level for level in levels if bits[level] < usual]
    if low and len({bits[level] for level in low}) == 1 and low == levels[: len(low)]:
        usual, low = bits[low[0]], []  # the lowest additions, before a promotion
    elif len(low) == 1 and len(way[low[0]].partial_sums) == 1 and len(way[low[0] + 1].partial_sums) == 2:
        reading.partial_bits, reading.agreeing["partial_bits"] = bits[low[0]], 2
    elif low:
        raise UnreadableError("another number at each addition")
    where = [level for level in levels if bits[level] == usual]
    reading.bits, reading.agreeing["bits"] = usual, 2 * len(where)
    reading.agree("rounding", [rounding_at(of, t, usual) for level in where[:3] for t in _meeting(way, level)])


def _read_without_tree(reading: Reading, of: Sum) -> None:
    """Read bits and rounding at some terms, of which those count whose small term meets the large one first. Raises
    UnreadableError."""
    last = of.terms - 1
    places = [(0, 1, last), (last, last - 1, 0), (0, last // 2, last), (1, 2, last - 1)]
    lost = [first_lost(of, triple) for triple in places]
    where = [triple for triple, count in zip(places, lost, strict=True) if count == min(lost)]
    if len(where) < 2:
        raise UnreadableError(AGAINST)
    reading.bits, reading.agreeing["bits"] = min(lost), len(where)
    reading.agree("rounding", [rounding_at(of, triple, min(lost)) for triple in where])


def read_inputs(reading: Reading, of: Sum) -> None:
    """Read how many bits of inputs are multiplied, how they are rounded to these, and whether inputs are split. Raises
    UnreadableError."""
    precision, ends = FORMATS[reading.dtype].precision, (0, of.terms - 1)
    if of.precision < precision or 0 < reading.bits < precision:
        raise UnreadableError("the accumulator holds no more bits than these")

    def kept(operand: int, term: int, value: float) -> float:
        return of.of_factors({term: (value, 1.0) if operand == 0 else (1.0, value)})

    operands = (0,) if of.sums.averages else (0, 1)
    bits = [
        next((k for k in range(1, precision) if kept(operand, term, 1 + 2.0**-k) != 1 + 2.0**-k), precision)
        for operand in operands for term in ends
    ]  # fmt: skip
    if len({*bits}) > 1:
        raise UnreadableError("another number of bits in each operand")
    reading.input_bits, reading.agreeing["input_bits"] = bits[0], len(bits)
    if bits[0] < precision:
        last = 2.0 ** (1 - bits[0])
        rules: dict[tuple[float, ...], str] = {(1, 1 + last, -1, -1 - last): "nearest", (1, 1, -1, -1): "zero"}
        below = [s * (1 + part * last) for s in (1, -1) for part in (0.25, 0.75)] if bits[0] + 1 < precision else []
        if below:
            values = [rules.get(tuple(kept(o, term, value) for value in below)) for o in operands for term in ends]
            reading.agree("input_rounding", values)
        beyond = [of.of_factors({term: (2.0**17, 2.0**-17)}) for term in ends]
        names = {8: "bf16", 11: "tf32" if beyond == [1.0, 1.0] else "fp16"}
        if bits[0] not in names or (bits[0] == 11 and len({*beyond}) > 1):
            raise UnreadableError("inputs are rounded to no format that is known")
        reading.inputs, reading.agreeing["inputs"] = names[bits[0]], len(bits) + len(beyond)
        return
    if reading.dtype == "fp32" and not of.sums.averages:
        _read_parts(reading, of, kept)
    else:
        reading.inputs, reading.agreeing["inputs"] = "exact", len(bits)


def _read_parts(reading: Reading, of: Sum, kept: Callable[[int, int, float], float]) -> None:
    """Read whether inputs, of which no bit alone is lost, are split into parts. Raises UnreadableError."""
    ends = (0, of.terms - 1)

    def dropped(term: int, first: int, second: int) -> bool:
        """Return whether the product of the last bits of two factors is missing."""
        product = of.of_factors({term: (1 + 2.0**-first, 1 + 2.0**-second)})
        return product == 1 + 2.0**-first + 2.0**-second

    two = [next((k for k in range(2, 12) if dropped(term, k, k)), 0) for term in ends]
    if two[0] != two[1]:
        raise UnreadableError(AGAINST)
    if two[0]:
        again = [dropped(term, two[0], two[0] + 1) for term in ends]
        if two[0] not in (8, 11) or not all(again):
            raise UnreadableError("inputs are split in no way that is known")
        reading.inputs = {8: "bf16x3", 11: "tf32x3"}[two[0]]
        reading.agreeing["inputs"] = len(two) + len(again)
        return
    numbers = np.random.default_rng(2).uniform(1, 2, 8).astype(np.float32).astype(np.float64).tolist()
    if any(kept(operand, term, value) != value for value in numbers for operand in (0, 1) for term in ends):
        raise UnreadableError("inputs are rounded to no format that is known")
    reading.inputs, reading.agreeing["inputs"] = "exact", 32
    way = reading.tree.way if reading.tree else []
    if len(way) < 3 or reading.bits != WIDE or any(len(node.children) > 2 for node in way):
        return
    # a product of which fp32 rounds the last bit away, and what takes the rest off: parts that are added apart keep it
    (first, second), third = way[0].leaves, leaves_of(way[1].children[-1])[0]
    if third in (first, second):
        return
    fourth = next(leaf for child in way[2].children if child is not way[1] for leaf in leaves_of(child))
    small, tiny = 1 + 2.0**-13, 1 + 2.0**-9 + 2.0**-18
    at = [{t: (small, small), third: (-1.0, 1.0), fourth: (-(2.0**-12), 1.0)} for t in (first, second)]
    apart = [of.of_factors(factors) == 2.0**-26 for factors in at]
    if not any(apart):
        return
    medium = 1 + 2.0**-9
    nine = [
        of.of_factors({first: (medium, tiny), third: (-1.0, tiny), fourth: (-(2.0**-9), medium)}) == 2.0**-27,
        of.of_factors({first: (tiny, medium), third: (tiny, -1.0), fourth: (medium, -(2.0**-9))}) == 2.0**-27,
    ]
    if not all(apart) or nine[0] != nine[1]:
        raise UnreadableError(AGAINST)
    reading.inputs, reading.agreeing["inputs"] = ("bf16x9" if nine[0] else "bf16x6"), 4


def read_subnormals(reading: Reading, of: Sum) -> None:
    """Read whether subnormal inputs and results become zero."""
    form, plan, terms = FORMATS[reading.dtype], of.sums.plan, (0, of.terms - 1)
    stored = of.sums.workload.outputs[of.sums.output].stored_as(reading.dtype)
    controlled = "numbers that are not subnormal do not come out either"

    def zeroed(normal: Factors, *below: Factors) -> list[bool | None]:
        """Return whether products become zero; nothing if one of normal numbers does not come out."""

        def is_zero(factors: Factors, term: int) -> bool | None:
            return {0.0: True, math.prod(factors): False}.get(of.of_factors({term: factors}))

        if any(is_zero(normal, term) is not False for term in terms):
            return []
        return [is_zero(factors, term) for term in terms for factors in below]

    def agree(name: str, answers: list[bool | None]) -> None:
        if answers:
            reading.agree(name, answers)
        else:
            reading.unknown[name] = controlled

    tiny = form.smallest_normal
    if of.sums.averages:
        reading.unknown["inputs_flushed"] = "the average of a subnormal number is subnormal itself"
        agree("results_flushed", zeroed(*((tiny / of.scale / part, 1.0) for part in (1, 2, 4))))
        return
    large, result = 2.0 ** min(form.emax - 1, -form.emin), FORMATS[stored]
    pairs = [(tiny / part, large) for part in (1, 2, 4)]
    by_operand = {plan.selected: zeroed(*pairs), plan.coded: zeroed(*(pair[::-1] for pair in pairs))}
    first, second = by_operand.values()
    agree("inputs_flushed", first + second if first and second else [])
    rules = {name: {*answers} for name, answers in by_operand.items()}
    if sorted(rules.values(), key=str) == [{False}, {True}]:  # filters may be converted once, and otherwise
        del reading.unknown["inputs_flushed"]
        reading.inputs_flushed, reading.agreeing["inputs_flushed"] = True, len(first + second)
        reading.flushed_operand = next(name for name, answers in rules.items() if answers == {True})
    half = (result.emin - 2) // 2
    if half < form.emin:
        reading.unknown["results_flushed"] = f"no product of {reading.dtype} is a subnormal number of {stored}"
    else:
        agree("results_flushed", zeroed(*((2.0**half, 2.0 ** (result.emin - lower - half)) for lower in (0, 1, 2))))


def read_results(reading: Reading, of: Sum) -> None:
    """Read how sums are rounded to the format of the results. Raises UnreadableError."""
    if reading.bits <= of.precision + 1:
        return  # a sum holds nothing between two results but their mean
    half = 2.0**-of.precision
    rules = list[str | None]()
    for first, last in ((0, of.terms - 1), (of.terms - 1, 0)):
        sums = [(sign, of.of({first: sign, last: sign * part * half})) for sign in (1, -1) for part in (0.5, 1.5)]
        rules.append(RULES.get(tuple((result - sign) / half for sign, result in sums)))
    reading.agree("result_rounding", rules)


def read_prefix_sums(reading: Reading, of: Sum, sums: Sums) -> None:
    """Read whether averages are differences of prefix sums, by a huge number outside the window.

    Beside it in a row or a column, it takes a small number in the window away from both kinds; where it shares neither,
    from a summed-area table alone. It stands on both sides, as sums may run from either end. Raises UnreadableError.
    """
    widest, small = of.reach
    if not 0 < reading.bits < widest:
        raise UnreadableError("the accumulator holds too many bits, or it is unknown how many")

    def kept(huge: float, within: int, *outside: int) -> bool:
        inputs = {name: array.copy() for name, array in sums.zeros.items()}
        image = inputs[sums.plan.selected][0, 0]
        image[within, within] = small
        if outside:
            image[outside] = huge
        return float(sums.compute(inputs)[0, 0, 1, 1]) * WINDOW**2 == small

    def rule(huge: float, within: int) -> str:
        if not kept(huge, within):
            raise UnreadableError("a small number alone does not come out either")
        if not all(kept(huge, within, *corner) for corner in itertools.product((0, 3 * WINDOW - 1), repeat=2)):
            return "summed-area"
        beside = [place for end in (0, 3 * WINDOW - 1) for place in ((within, end), (end, within))]
        return "direct" if all(kept(huge, within, *place) for place in beside) else "running-sums"

    huge = small * 2.0**widest
    reading.agree("algorithm", [rule(huge, WINDOW), rule(-huge, 2 * WINDOW - 1)])


def read_bias(reading: Reading, of: Sum, sums_of: Problem) -> None:
    """Read whether the bias is added before the sum is rounded to the dtype. Raises UnreadableError."""
    if reading.bits <= of.precision:
        return  # before and after are the same
    sums = sums_of("bias")
    if sums is None:
        raise UnreadableError("it supports no such problem with a bias")
    biased, last = sums.at(), 2.0**-of.precision
    answers = []
    for unit, terms in ((1.0, (0, 1)), (-1.0, (1, 0)), (8.0, (0, biased.terms - 1))):
        result = biased.of({terms[0]: unit, terms[1]: unit * last}, bias=unit * last) / unit
        answers.append({1 + 2 * last: "before", 1.0: "after"}.get(result))
    reading.agree("bias", answers)


def read_promotion(reading: Reading, sums_of: Problem) -> None:
    """Read after how many terms an accumulator of few bits is added to a wider one. Raises UnreadableError."""
    sums = sums_of("long")
    if sums is None:
        raise UnreadableError("it supports no problem with long sums")
    of = sums.at()
    last, large = of.terms - 1, 2.0**reading.bits

    def keeps(first: int, small: int) -> bool:
        return of.in_units({first: large, small: 1.0, last: -large}) == 1

    if not keeps(0, of.terms // 2):
        if any(keeps(0, term) for term in (2, of.terms // 4, last - 1)):
            raise UnreadableError(AGAINST)
        reading.unpromoted = of.terms
        raise UnreadableError(f"there is none in sums of {of.terms} terms that are added in the order of their indices")
    low, high = 1, of.terms // 2
    if keeps(0, low):
        raise UnreadableError(AGAINST)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if keeps(0, middle) else (middle, high)
    inside = not keeps(0, high - 1) and not keeps(high, 2 * high - 1) and not keeps(high, high + 1)
    if not (inside and keeps(high, 2 * high) and keeps(0, high + high // 2)):
        raise UnreadableError(AGAINST)
    reading.promoted, reading.agreeing["promoted"] = high, 5
    wider = [first_lost(of, (0, high, last)), first_lost(of, (high, 2 * high, last))]
    reading.agree("promoted_bits", wider)


def read_transforms(reading: Reading, sums: Sums) -> None:
    """Read whether data are transformed: a number that the definition multiplies with zero then changes a result.

    In F(m x m, 3 x 3) the first and the last row of a tile enter one product each, so that the first and the last of m
    results are right all the same. Their distance is m (Lavin and Gray 2016). Raises UnreadableError.
    """
    wide, narrow = [(2.0**15, 2.0**-14)], [(2.0**8, 2.0**-9)]
    pairs = {"fp16": wide, "fp8_e5m2": wide, "fp8_e4m3": narrow, FP8_BOTH.name: narrow}
    for huge, small in pairs.get(sums.dtype, [(2.0**60, 1.0), (2.0**15, 2.0**-14)]):
        intact = _intact(sums, huge, small)
        if intact is not None:
            break  # else the number leaves the range of the format that inputs are rounded to
    else:
        raise UnreadableError("results are not finite")
    first, last, rows = intact
    steps = {after - before for rights in (first, last) for before, after in itertools.pairwise(rights)}
    if first == last == rows:
        reading.algorithm = "direct"
    elif first == last == []:
        if _reaches_channels(sums, huge, small):
            raise UnreadableError("a large number changes sums of other channels, as in slices that share an exponent")
        reading.algorithm = "fft"
    elif len(steps) == 1 and steps <= {2, 4, 6} and min(len(first), len(last)) > 1:
        reading.algorithm = f"winograd-f{steps.pop()}"
    else:
        raise UnreadableError("its data are transformed, in no way that is known")
    reading.agreeing["algorithm"] = 2 * len(rows)


def _intact(sums: Sums, huge: float, small: float) -> tuple[list[int], list[int], list[int]] | None:
    """Return the rows of results in which a small number at one end of the window, and at the other, is intact beside a
    huge number at the opposite end that is multiplied with zero, and all rows; None where a result is not finite."""
    extents = tuple(sums.plan.axes.values())
    rows = [row for row, count in enumerate(sums.counts[0, 0, :, sums.counts.shape[-1] // 2])
            if count == sums.counts.max()][:ROWS]  # fmt: skip
    column = sums.counts.shape[-1] // 2
    ends: list[list[int]] = []
    for taps in ((0, extents[-2] - 1), (extents[-2] - 1, 0)):
        near, far = (int(np.ravel_multi_index((0, tap, extents[-1] // 2), extents)) for tap in taps)
        results = [
            sums.at((0, 0, row, column + row % 2)).of_factors({near: (small, 1.0), far: (huge, 0.0)}) for row in rows
        ]
        if not np.isfinite(results).all():
            return None
        # a small number that is lost leaves nothing, or much more
        ends.append([row for row, result in zip(rows, results, strict=True) if abs(result - small) < small / 8])
    return ends[0], ends[1], rows


def _reaches_channels(sums: Sums, huge: float, small: float) -> bool:
    """Return whether a small number is lost beside a huge one in another channel, whose filter is zero: in a transform
    of images, whose products are zero there, it is not."""
    extents = tuple(sums.plan.axes.values())
    if extents[0] < 2:
        return False
    near, far = (int(np.ravel_multi_index((channel, 0, extents[-1] // 2), extents)) for channel in (0, 1))
    result = sums.at().of_factors({near: (small, 1.0), far: (huge, 0.0)})
    return not abs(result - small) < small / 8


def read_ties(reading: Reading, of: Sum) -> None:
    """Read how results of int8 half way between two integers are rounded, and one a quarter above an integer, which the
    first of two roundings makes such a result. Results without a sign tell even numbers alone from the other rules,
    which differ on negative numbers."""
    halves = (1, 3, -1, -3), (5, 7, -5, -7)
    rules: list[dict[tuple[float, ...], str]] = [
        {(0, 2, 0, -2, 0): "even", (1, 2, -1, -2, 0): "away", (1, 2, 0, -1, 0): "up", (1, 2, 0, -1, 1): "gemmlowp"},
        {(2, 4, -2, -4, 1): "even", (3, 4, -3, -4, 1): "away", (3, 4, -2, -3, 1): "up", (3, 4, -2, -3, 2): "gemmlowp"},
    ]
    if reading.dtype == "uint8":
        halves, rules = ((1, 3, 5, 7), (5, 7, 9, 11)), [{(0, 2, 2, 4, 0): "even"}, {(2, 4, 4, 6, 1): "even"}]
    results = [tuple(of.of_factors({term: (value, 1.0)}, scale=scale)
                     for value, scale in (*((value, 0.5) for value in values), (values[0], 0.25)))
               for term, values in zip((0, of.terms - 1), halves, strict=True)]  # fmt: skip
    reading.agree("ties", [rule.get(result) for rule, result in zip(rules, results, strict=True)])


def read_overflow(reading: Reading, of: Sum) -> None:
    """Read what results beyond the range of fp8 become."""
    form = FORMATS[reading.dtype]
    large = 2.0**form.emax
    finite = 448.0 if reading.dtype == "fp8_e4m3" else 57344.0
    values = []
    for sign, factor in itertools.product((1.0, -1.0), (4.0, 16.0)):
        result = of.of_factors({0: (sign * large, factor)})
        values.append("saturates" if result == sign * finite else None if math.isfinite(result) else "nonfinite")
    reading.agree("overflow", values)
