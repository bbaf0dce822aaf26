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


def of_family(family: str, name: str) -> Path:
    """A text of an operator family, in its folder: `problems.txt` or `ranking.txt`."""
    return PACKAGE / "operators" / family / name
