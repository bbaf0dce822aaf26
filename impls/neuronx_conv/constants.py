"""What the public source of the vendor's kernel imports as `nki.language.constants`, where SDK 2.26 has it as this."""

from neuronxcc.nki.language.constants import sizeinbytes

__all__ = ["sizeinbytes"]
