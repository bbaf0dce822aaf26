"""What a public kernel of the first generation imports as `nki.language.constants`."""

from neuronxcc.nki.language.constants import sizeinbytes

__all__ = ["sizeinbytes"]
