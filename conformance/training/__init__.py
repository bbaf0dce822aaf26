"""Training a network through an implementation's convolution kernels, every step of it verified.

`layers` has the drop-in modules and `replace_convolutions`; `audit` verifies every call; the rest is
what the suite trains. Importing this package imports no torch; its modules do, but for `required` and `tables`.
"""
