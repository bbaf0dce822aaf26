"""Training a network through an implementation's convolution kernels, every step of it verified.

`layers` has the drop-in modules and `replace_convolutions`; `audit` verifies every call; the rest is what the suite
trains. `bridge`, `kernels`, `layers`, `loop`, `models` and `samples` import torch, and run where the kernels do;
`audit`, `train` and `training_demand` run where results are judged, and import none. `exchange` passes between them.
"""
