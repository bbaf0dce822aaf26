"""Times of verified kernels, beside the roofline of their device, and beside torch there."""
