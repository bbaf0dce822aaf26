"""Matrix products with a bias, a residual and an activation. Nothing is imported here: a kernel's process loads
`geometry` alone."""
