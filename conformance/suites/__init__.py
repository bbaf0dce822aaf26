"""The conformance suites: what `pytest` runs.

`from conformance.suites import *` in a test file brings all of them into a project's own tests.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

__all__ = []
for _file in iter_modules(__path__):
    _module = vars(import_module(f"{__name__}.{_file.name}"))
    _tests = {name: test for name, test in _module.items() if name.startswith("test_")}
    globals().update(_tests)
    __all__ += _tests
