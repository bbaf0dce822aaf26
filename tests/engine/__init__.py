"""Tests of the run."""
