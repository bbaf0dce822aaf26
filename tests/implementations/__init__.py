"""How implementations are found and loaded."""
