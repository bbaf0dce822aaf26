"""The model of time beside public measurements."""
