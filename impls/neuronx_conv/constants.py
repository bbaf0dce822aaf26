"""Constants that the vendor's public source imports from `nki.language.constants`; SDK 2.26 has them elsewhere."""

from neuronxcc.nki.language.constants import sizeinbytes

__all__ = ["sizeinbytes"]
