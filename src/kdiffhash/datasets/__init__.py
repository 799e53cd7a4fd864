"""Data to learn from and to test on: patches around 3D points, and how to get them."""

from .build import build_scene
from .descriptors import describe_patches, describe_scene
from .fetch import FetchError, fetch_scene
from .scene import Scene, find_scene, load_scene
from .sheets import PatchSheets
from .views import Views, load_views

__all__ = [
    "FetchError",
    "PatchSheets",
    "Scene",
    "Views",
    "build_scene",
    "describe_patches",
    "describe_scene",
    "fetch_scene",
    "find_scene",
    "load_scene",
    "load_views",
]
