"""Find scenes by path or name: in a folder of scenes, in the cache, or in the embedded set."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from .._util.files import cache_folder
from .descriptors import DescriptorKind, describe_folder
from .scene import Scene, read_scene
from .views import load_views


def find_scene(name: str | os.PathLike[str]) -> Path:
    r"""Return the folder of a scene, given its path or name.

    Parameters
    ----------
    name : str or path
        Path of a scene, or name of a scene in the folder KDIFFHASH_SCENES or in the cache of
        `fetch_scene`. `views-train` and `views-test` are the two scenes of the embedded set, which
        is made on first use.

    Returns
    -------
    folder : Path

    Raises
    ------
    FileNotFoundError
        If there is no such scene.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from kdiffhash.datasets import find_scene
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "info.txt").write_text("0 1\n0 2\n")
    ...     find_scene(folder) == Path(folder)
    True
    """
    folder = Path(name)
    if (folder / "info.txt").is_file():
        return folder
    root = os.environ.get("KDIFFHASH_SCENES")
    if root and (Path(root) / name / "info.txt").is_file():
        return Path(root) / name
    if os.fspath(name) in ("views-train", "views-test"):
        return load_views().train.path.with_name(str(name))
    with suppress(FileNotFoundError):  # a user without a home folder has no cache
        fetched = cache_folder() / "scenes" / name
        if (fetched / "info.txt").is_file():
            return fetched
    where = f"KDIFFHASH_SCENES={root}" if root else "KDIFFHASH_SCENES (which is not set)"
    raise FileNotFoundError(
        f"no scene {os.fspath(name)!r}: there is no such folder with an info.txt in the current "
        f"folder, in {where} or in the cache of downloads (kdiffhash data fetch NAME)"
    )


def load_scene(name: str | os.PathLike[str], descriptor: str = "sift") -> Scene:
    r"""Open a scene by path or name.

    Parameters
    ----------
    name : str or path
        See `find_scene`.
    descriptor : str, default="sift"
        Descriptors to use: the name of the file without `.npy`.

    Returns
    -------
    scene : Scene

    Raises
    ------
    FileNotFoundError
        If there is no such scene, or if it has neither these descriptors nor patches.
    ValueError
        If a file of the scene is damaged.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from kdiffhash.datasets import load_scene
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "info.txt").write_text("0 1\n0 2\n")
    ...     np.save(Path(folder) / "sift.npy", np.zeros((2, 128), np.uint8))
    ...     load_scene(folder).points.tolist()
    [0, 0]
    """
    return read_scene(find_scene(name), descriptor)


def describe_scene(
    name: str | os.PathLike[str],
    kind: DescriptorKind = "sift",
    *,
    n_jobs: int | None = None,
    verbose: bool = False,
) -> Scene:
    """Compute descriptors of the patches of a scene, store them in its folder and open it.

    Parameters
    ----------
    name : str or path
        See `find_scene`.
    kind : {"sift", "hog"}, default="sift"
        See `describe_patches`.
    n_jobs : int, optional
        Number of threads; by default all cores available to the process.
    verbose : bool, default=False
        Show a progress bar on a terminal.

    Returns
    -------
    scene : Scene

    Examples
    --------
    >>> from kdiffhash.datasets import describe_scene
    >>> describe_scene("trevi", "hog").descriptors.shape  # doctest: +SKIP
    (101106, 288)
    """
    return describe_folder(find_scene(name), kind, n_jobs=n_jobs, verbose=verbose)
