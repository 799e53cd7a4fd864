"""Engines that people already run, one file each."""
