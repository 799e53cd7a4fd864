"""Where fetched scenes and the embedded set are kept."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path


def cache_folder() -> Path:
    """The folder that KDIFFHASH_CACHE names, or the user's cache folder of this system."""
    chosen = os.environ.get("KDIFFHASH_CACHE")
    return Path(chosen).expanduser() if chosen else user_cache_path("kdiffhash", appauthor=False)
