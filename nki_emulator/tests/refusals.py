"""Kernels that break one rule each, and neighbours that break none; the tables are in the two files beside this one."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np

from nki_emulator.tests.sources import BETA_HEADER, Refused, indented, marked, source

FOLDER = Path(__file__).parent
_PRESENT, _BETA = (tomllib.loads((FOLDER / name).read_text()) for name in ("refusals.toml", "beta_refusals.toml"))
REFUSED = tuple(
    Refused(rule, source(marked(body)), target)
    for target, rules in _PRESENT["refused"].items()
    for rule, bodies in rules.items()
    for body in bodies
)
ACCEPTED: dict[str, str] = _PRESENT["accepted"]

_FRAME = """y = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
p, x = nl.mgrid[0:16, 0:24]
tile = nl.load(a)
{body}
nl.store(y, value=tile)
return y"""


def beta_source(body: str) -> str:
    """A file of the first generation with one kernel."""
    return f"{BETA_HEADER}@nki.jit\ndef kernel(a):\n{indented(body)}"


def _beta(kind: str) -> list[Refused]:
    """Called with whole numbers from 0 on."""
    values = np.arange(384).reshape(16, 24).astype(np.int32 if kind == "integers" else np.float32)
    frame = "{body}" if kind == "whole" else _FRAME
    return [
        Refused(rule, beta_source(frame.format(body=body if kind == "whole" else marked(body))), arguments=(values,))
        for rule, bodies in _BETA[kind].items()
        for body in bodies
    ]


BETA_REFUSED = (
    *_beta("framed"),
    *_beta("integers"),
    *_beta("whole"),
    Refused("argument", beta_source("return a"), arguments=(np.zeros((0, 2), np.float32),)),
    Refused("mixed-generations", "import nki\n" + beta_source("return a")),
)
