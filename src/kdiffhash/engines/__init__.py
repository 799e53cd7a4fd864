"""Adapters to other systems, one module or folder each."""
