"""Learning of binary codes from pairs, one step per module."""
