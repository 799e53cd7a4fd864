"""Data to learn from and to test on."""

from .scene import Scene, find_scene, load_scene

__all__ = ["Scene", "find_scene", "load_scene"]
