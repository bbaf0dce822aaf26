"""Explanations of verdicts may fail without any effect on the verdicts: a KeyError in the search for where kernels fail
ended a run with all its verdicts lost."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Tell = Callable[[str, Exception], object]
"""Takes the line that names what was not explained, and the exception that was raised."""
_LOG = logging.getLogger("conformance")


def _log(line: str, _: Exception) -> None:
    _LOG.warning("%s", line)


@contextmanager
def explaining(what: str, tell: Tell = _log) -> Iterator[None]:
    """Suppress exceptions of the block, and report them in one line that begins with `what`, such as a case; the
    traceback goes to the log of `conformance`, at level DEBUG."""
    try:
        yield
    except Exception as error:
        _LOG.debug("%s", what, exc_info=True)
        *_, last = traceback.extract_tb(error.__traceback__)
        where = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
        tell(f"{what}: the explanation failed ({where}), which changes no verdict: please report this line", error)
