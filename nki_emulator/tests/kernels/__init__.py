"""The NKI kernels of `impls/nki`, executed by the emulator."""
