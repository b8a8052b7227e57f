"""Other people's wires and formats."""
