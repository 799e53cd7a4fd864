"""Helpers shared by the whole package: threads, progress bars, files, errors, lazy imports."""
