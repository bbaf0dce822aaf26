"""Behaviour, invalid requests, adjoint, memory."""
