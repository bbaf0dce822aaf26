"""Training through kernels."""
