"""Training and test data: scenes of patches around 3D points, downloaded, built or embedded."""

from .build import build_scene
from .descriptors import describe_patches
from .fetch import FetchError, fetch_scene
from .named_scenes import describe_scene, find_scene, load_scene
from .scene import Scene
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
