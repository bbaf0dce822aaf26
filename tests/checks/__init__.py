"""Promises of behaviour."""
