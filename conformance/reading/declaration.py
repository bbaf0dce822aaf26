"""What follows from a reading: the contract that fits, what contradicts a declared one, and the lines that say so."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from conformance.accumulator import ROUNDINGS, STORED, UNITS, Accumulator
from conformance.contract import PREFIX_SUMS, Contract
from conformance.dtypes import FORMATS, WHOLE
from conformance.reading.read import Reading
from conformance.reading.tree import described, drawn

ACCUMULATORS = {53: "fp64", 24: "fp32", 11: "fp16", 8: "bf16"}
INDENT = 16
PRECISE = ("exact", "bf16x9", "bf16x6", "tf32x3", "bf16x3", "tf32", "fp16", "bf16")
"""Values of a contract's `inputs`, the most precise first."""

TOWARD = {
    "nearest": "to nearest",
    "zero": "cut off",
    "down": "rounded down",
    "up": "rounded up",
    None: "rounded in an unknown way",
}


def fitting(reading: Reading) -> Contract | None:
    """Return the strictest contract that allows what was read, with the default where nothing was; None if nothing was
    read at all."""
    if reading.nothing or not (reading.bits or reading.inputs or reading.algorithm or reading.ties):
        return None
    fields: dict[str, Any] = {}
    if reading.inputs and not _is_of_dtype(reading):
        fields["inputs"] = reading.inputs
    if (unit := _unit(reading)) is not None:
        fields["accumulate"] = next((name for name, accumulator in UNITS.items() if accumulator == unit), unit)
    elif reading.bits and reading.dtype not in WHOLE:
        name = next(name for bits, name in ACCUMULATORS.items() if bits <= max(8, reading.bits))
        fields["accumulate"] = "auto" if name == ("fp64" if reading.dtype == "fp64" else "fp32") else name
    if {reading.input_rounding, *(() if unit else (reading.rounding, reading.group_rounding))} & {"zero", "down", "up"}:
        fields["rounding"] = "zero"
    if reading.algorithm and reading.algorithm != "direct":
        fields["algorithm"] = reading.algorithm
    if reading.inputs_flushed or reading.results_flushed:
        fields["subnormals"] = "flushed"
    if reading.partial_bits in ACCUMULATORS and reading.partial_sums > 1:
        fields |= {"splits": reading.partial_sums, "partials": ACCUMULATORS[reading.partial_bits]}
    if reading.ties:
        fields["ties"] = reading.ties
    if reading.overflow:
        fields["overflow"] = reading.overflow
    return Contract(**fields)


def _unit(reading: Reading) -> Accumulator | None:
    """Return the accumulator of a matrix unit; None where sums are those of ordinary additions, or not all is known of
    them."""
    if reading.dtype in WHOLE or not reading.bits:
        return None
    promote = reading.promoted if reading.promoted and reading.promoted_bits == FORMATS["fp32"].precision else 0
    if reading.group > 1 and reading.group_bits and reading.group_rounding in ROUNDINGS:
        stored = "e8m13" if reading.bits == STORED["e8m13"].precision else "fp32"
        return Accumulator(reading.group_bits, reading.group, str(reading.group_rounding), stored, promote)
    if reading.group <= 1 and reading.bits not in ACCUMULATORS and reading.rounding in ROUNDINGS:
        return Accumulator(reading.bits - 1, rounding=str(reading.rounding), promote=promote)
    return None


def _is_of_dtype(reading: Reading) -> bool:
    return reading.inputs in FORMATS and FORMATS[str(reading.inputs)].holds(FORMATS[reading.dtype])


def unnamed(reading: Reading) -> Iterator[str]:
    """Yield what was read and no field of a contract says."""
    unit = _unit(reading)
    if unit is None and reading.bits and reading.bits not in ACCUMULATORS:
        yield f"an accumulator of {reading.bits} bits, which is declared as the next smaller one"
    if reading.rounding == "up" or (unit is None and reading.rounding == "down"):
        yield f"sums rounded {reading.rounding}"
    if unit is None and reading.group > 1:
        yield f"{reading.group} terms that are added at once"
    if reading.promoted and not (unit and unit.promote):
        yield f"promotion after {reading.promoted} terms"
    if reading.result_rounding not in ("nearest", None):
        yield f"results that are {TOWARD[reading.result_rounding]}"
    if reading.bias == "after":
        yield "a bias that is added after the rounding"


def contradictions(reading: Reading, declared: Contract) -> list[str]:
    """Return what was read and a declared contract does not allow. A kernel may be more precise than it declares."""
    contract = fitting(reading)
    if contract is None:
        return []
    wrong = []
    is_compared = "inputs" in reading.agreeing and declared.slices is None
    if is_compared and PRECISE.index(str(contract.inputs)) > PRECISE.index(str(declared.inputs)):
        wrong.append("inputs")
    precision = declared.accumulator(reading.dtype).precision
    if declared.splits > 1:  # the bits that are read are those of stored partial sums, if these have fewer
        precision = min(precision, FORMATS[declared.partials].precision)
    if "bits" in reading.agreeing and reading.bits and precision > reading.bits:
        wrong.append("accumulate")
    if contract.unit and declared.unit and contract.unit.bits < declared.unit.bits and "accumulate" not in wrong:
        wrong.append("accumulate")
    interval = reading.promoted or reading.unpromoted
    if declared.unit and 0 < declared.unit.promote < interval and 0 < reading.bits <= precision and not wrong:
        wrong.append("accumulate")
    cuts_inputs = declared.narrow and declared.rounding == "nearest" and reading.input_rounding == "zero"
    if cuts_inputs or (contract.is_cut and not declared.is_cut):
        wrong.append("rounding")
    averages = reading.operator.startswith("avg_pool")
    levels = ("direct", *(PREFIX_SUMS if averages else ("winograd-f2", "winograd-f4", "winograd-f6", "fft")))
    algorithm = declared.algorithm if declared.algorithm in levels else "direct"
    if reading.algorithm and levels.index(reading.algorithm) > levels.index(algorithm):
        wrong.append("algorithm")
    if contract.subnormals == "flushed" and declared.subnormals == "kept":
        wrong.append("subnormals")
    if contract.splits > 1 and (
        declared.splits < contract.splits or FORMATS[declared.partials].precision > reading.partial_bits
    ):
        wrong.append("splits")
    if reading.result_rounding not in ("nearest", None) and declared.stored == "nearest":
        wrong.append("stored")  # no contract allows it
    wrong += [
        name
        for name in ("ties", "overflow")
        if getattr(reading, name) and getattr(contract, name) != getattr(declared, name)
    ]
    return wrong


def summary(reading: Reading, declared: Contract, error: str, width: int) -> Iterator[str]:
    """Yield the lines of a reading, or of the error that ended it, of at most so many columns where words allow it."""
    yield f"{reading.operator} in {reading.dtype}"
    if error:
        yield from _wrapped("error", error, width)
        return
    if reading.nothing:
        yield from _wrapped("nothing read", reading.nothing, width)
        return
    for name, text in properties(reading):
        yield from _wrapped(name, text, width)
    for line in drawn(reading.tree) if reading.tree else ():
        yield f"{'':{INDENT}}{line}"
    for names, why in _grouped(reading.unknown):
        yield from _wrapped("unknown", f"{names}: {why}", width)
    if missing := ", ".join(unread(reading)):
        yield from _wrapped("not read", missing, width)
    contract = fitting(reading)
    if contract is not None:
        default = "; it is the default" if contract == Contract() else ""
        if alike := [name for name, unit in UNITS.items() if unit == contract.unit and name != contract.accumulate]:
            default += f"; the same as {', '.join(alike)}"
        format = FORMATS.get(reading.dtype)  # none of whole numbers
        is_short = format is not None and not format.holds(FORMATS["fp32"])  # transformed data have their own format
        is_transformed = is_short and reading.algorithm not in (None, "direct")
        is_partial = is_transformed or not (reading.bits or reading.ties)
        default += "; what is unknown may need more" if is_partial else ""
        yield from _wrapped("declare", f"{contract.declaration}{default}", width)
        if lacking := ", ".join(unnamed(reading)):
            yield from _wrapped("", f"no contract says: {lacking}", width)
    if wrong := contradictions(reading, declared):
        text = f"{declared.declaration} is declared, which allows no such {' and '.join(wrong)}"
        yield from _wrapped("CONTRADICTION", text, width)
    shapes = ", ".join(f"{descriptor!r}" for descriptor in reading.problems.values())
    yield from _wrapped("read on", f"{shapes}; {reading.calls:,} calls", width)


LABELS = {"inputs_flushed": "subnormal inputs", "results_flushed": "subnormal results", "promoted": "promotion",
          "bits": "accumulator", "group_bits": "bits of a group", "group_rounding": "rounding of a group",
          "promoted_bits": "wider accumulator", "input_rounding": "rounding of inputs"}  # fmt: skip


def _grouped(unknown: dict[str, str]) -> list[tuple[str, str]]:
    """Return unknown properties by reason."""
    reasons: dict[str, list[str]] = {}
    for name, why in unknown.items():
        reasons.setdefault(why, []).append(LABELS.get(name, name))
    return [(", ".join(names), why) for why, names in reasons.items()]


def unread(reading: Reading) -> Iterator[str]:
    """Yield what a contract can say of such a kernel and no probe reads."""
    if reading.algorithm not in ("direct", None, *PREFIX_SUMS):
        yield "the format of transformed data"
    if reading.dtype in ("bf16", "fp16") and reading.result_rounding is None:
        yield "how results are rounded"
    if reading.operator.startswith("avg_pool") and reading.algorithm is None:
        yield "prefix sums, which a window as large as the image does not show"


def properties(reading: Reading) -> Iterator[tuple[str, str]]:
    """Yield what was read: its name, and the value with the number of probes that agree."""

    def sure(*names: str) -> str:
        return f"  ({min(reading.agreeing[name] for name in names)} probes agree)"

    if reading.inputs:
        whole = f"all {reading.input_bits} bits are used"
        text = {"exact": whole}.get(
            reading.inputs, f"{reading.inputs}, {reading.input_bits} bits {TOWARD[reading.input_rounding]}"
        )
        if "x" in reading.inputs and reading.inputs != "exact":
            text = f"split in parts: {reading.inputs}"
        yield "inputs", text + sure("inputs")
    if reading.algorithm:
        yield "algorithm", reading.algorithm + sure("algorithm")
    if reading.bits:
        yield "accumulator", f"{reading.bits} bits, {TOWARD[reading.rounding]}" + sure("bits")
    if reading.group > 1:
        text = f"{reading.group} terms at once"
        if reading.group_bits:
            text += f", aligned to {reading.group_bits} fraction bits, {TOWARD[reading.group_rounding]}"
        yield "group", text + sure("group")
    if reading.promoted:
        yield "promotion", f"every {reading.promoted} terms, to {reading.promoted_bits} bits" + sure("promoted")
    if reading.partial_bits:
        yield "partial sums", f"{reading.partial_sums}, stored in {reading.partial_bits} bits" + sure("partial_bits")
    inputs = f"inputs of {reading.flushed_operand}" if reading.flushed_operand else "inputs"
    for field, named in (("inputs_flushed", inputs), ("results_flushed", "results")):
        if (flushed := getattr(reading, field)) is not None:
            yield "subnormals", f"{named}: {'become zero' if flushed else 'kept'}" + sure(field)
    if reading.bias:
        yield "bias", f"added {reading.bias} the sum is rounded" + sure("bias")
    if reading.result_rounding:
        yield "results", TOWARD[reading.result_rounding] + sure("result_rounding")
    for name in ("ties", "overflow"):
        if getattr(reading, name):
            yield name, getattr(reading, name) + sure(name)
    if reading.tree:
        yield "order", described(reading.tree) + sure("order")


def _wrapped(name: str, text: str, width: int) -> list[str]:
    first, rest = f"  {name:{INDENT - 2}}", " " * INDENT
    return textwrap.wrap(text, max(width, INDENT + 24), initial_indent=first, subsequent_indent=rest,
                         break_long_words=False, break_on_hyphens=False)  # fmt: skip


def as_record(reading: Reading) -> dict[str, Any]:
    """Return a reading as plain data."""
    return {name: value for name, value in asdict(replace(reading, tree=None)).items() if name != "tree"}
