"""The process that kernels run in: it loads a vendor's file, calls what it defines, and answers the judge.

All that a kernel can find here is what its file may use: `conformance.Implementation`, bridges, geometries. References,
judge and pytest are in another process.
"""
