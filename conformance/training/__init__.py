"""Training a network through an implementation's convolution kernels, every step of it verified.

`layers` has the drop-in modules and `replace_convolutions`; `audit` judges every call; the rest is what
the suite trains. Importing this package imports no torch; its modules do, but for `due`, `plugin` and `tables`.
"""
