"""Training a network through an implementation's convolution kernels, every step of it verified.

`layers` has the drop-in modules and `replace_convolutions`; `audit` verifies every call; the other modules are for the
suite's own trainings. `bridge`, `kernels`, `layers`, `loop`, `models` and `samples` import torch, and run where the
kernels do; `audit`, `train` and `training_demand` run where results are judged, and do not import it. `exchange` passes
between them.
"""
