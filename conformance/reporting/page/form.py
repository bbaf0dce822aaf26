"""The form of a record. Files come from elsewhere: what has another form is reported, never half understood."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from conformance.reporting.tally import STATUSES

Test = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**18


def _real(value: Any) -> bool:
    """JSON has no infinity, records spell it; but what is too large for a float is read as one."""
    return value in ("inf", "-inf", "nan") or (_number(value) and abs(value) <= sys.float_info.max)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _seconds(value: Any) -> bool:
    return _number(value) and 0 <= value < 1e12


def _mapping(of: Test) -> Test:
    return lambda value: isinstance(value, dict) and all(map(of, value.values()))


def _listing(of: Test) -> Test:
    return lambda value: isinstance(value, list) and all(map(of, value))


def _having(fields: Mapping[str, Test]) -> Test:
    return lambda value: isinstance(value, dict) and all(n in value and test(value[n]) for n, test in fields.items())


def _pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_real, value))


def _optional(test: Test) -> Test:
    return lambda value: value is None or test(value)


def _profile(value: Any) -> bool:
    needed = ("lambda", "lambda_limit", "rms")
    return _mapping(_real)(value) and all(n in value for n in needed) and float(value["lambda_limit"]) > 0


_SCORES = ("first loss", "last loss", "accuracy", "test loss", "test accuracy", "commonest")
_SIZES = ("buffers", "activation_bytes", "parameter_bytes", "vector_bytes")
_WORK = ("dma_bytes", "instructions", "matmuls")
_STEP = ("batch", "peak_bytes", "forward_bytes")
REQUIRED: dict[str, tuple[Test, str]] = {
    "schema": (_whole, "a whole number"),
    "implementation": (_text, "text"),
    "operator": (_text, "text"),
    "device": (_text, "text"),
    "status": (lambda value: value in STATUSES, f"one of {', '.join(STATUSES)}"),
    "cases": (_whole, "a whole number"),
    "reason": (_text, "text"),
    "versions": (_mapping(_text), "names with texts"),
}
OPTIONAL: dict[str, tuple[Test, str]] = {
    **dict.fromkeys(
        ("problem", "descriptor", "dtype", "layout", "distribution", "generator", "method"), (_text, "text")
    ),
    **dict.fromkeys(("source", "command", "check", "level", "run_level"), (_text, "text")),
    "seed": (_whole, "a whole number"),
    "contract": (_optional(_mapping(lambda value: _text(value) or _real(value))), "names with values"),
    "terms": (lambda value: _whole(value) or _mapping(_whole)(value), "whole numbers"),
    "checks": (_mapping(_mapping(_pair)), "pairs of value and limit by output and name"),
    "profile": (_mapping(_profile), "numbers by output, lambda_limit above 0"),
    "inferred": (
        _mapping(_having({"contract": _text, "rank": _whole, "conservative": lambda value: isinstance(value, bool)})),
        "contract, rank and conservative by output",
    ),
    "seconds": (_mapping(_seconds), "numbers of seconds by phase"),
    "repeatable": (lambda value: isinstance(value, bool), "true or false"),
    "not_refused": (_listing(_text), "texts"),
    "work": (_optional(_having(dict.fromkeys(_WORK, _whole))), "counts of bytes and instructions"),
    "least_bytes": (lambda value: _whole(value) and value > 0, "a whole number above 0"),
    "kept": (_listing(_having({"form": _text} | dict.fromkeys(_SIZES, _whole))), "rows with form and sizes"),
    "trained": (_listing(_having({"form": _text} | dict.fromkeys(_STEP, _whole))), "rows with form and sizes"),
    "training": (
        _having(
            {
                "network": _text,
                "steps": _whole,
                "judged": _whole,
                "losses": _listing(_real),
                "scores": lambda value: not value or _having(dict.fromkeys(_SCORES, _real))(value),
            }
        ),
        "network, steps, judged, losses and scores",
    ),
}


FIELDS = REQUIRED | OPTIONAL


def fault(record: Any) -> str:
    """What is wrong with the form of a record; empty if nothing is. Unknown fields are nobody's business."""
    if not isinstance(record, dict):
        return "no JSON object"
    for name, (test, expected) in FIELDS.items():
        if name not in record:
            if name in REQUIRED:
                return f"field {name!r} is missing"
        elif not test(record[name]):
            return f"field {name!r} must be {expected}"
    if "kernel" in record.get("seconds", {}) and "total" not in record["seconds"]:
        return "field 'seconds' must have a total"
    if record.get("work") and not ("least_bytes" in record and "problem" in record):
        return "field 'work' needs 'least_bytes' and 'problem'"
    missing = record.get("profile", {}).keys() - record.get("inferred", {}).keys()
    return f"field 'inferred' lacks {', '.join(sorted(missing))}" if missing else ""
