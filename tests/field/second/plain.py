"""Plain right kernels: every operator, dtype and layout."""
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from _kit import ALL, BOTH, Implementation, R, right, signature

plain = Implementation("good-00-plain")
for _op in R.OPS:
    plain.implements(_op, dtypes=ALL, layouts=BOTH)(signature(_op, lambda ins, kw, op=_op: right(op, ins, kw)))
