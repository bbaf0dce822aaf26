"""Known-bad and known-good kernels, and the campaigns that measure the suite's own error rates."""
