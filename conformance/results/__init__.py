"""The typed verdict: schema, writing, reading."""
