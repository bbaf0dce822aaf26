"""Tests of the emulator of NKI, which know nothing of the suite."""
