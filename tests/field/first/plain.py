import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from _right import *
kit = Kit(globals(), "good-plain")

@kit("plain", OPS, "", dtypes=ALL)
def _(R, i, p, o):
    return R(i, p)
