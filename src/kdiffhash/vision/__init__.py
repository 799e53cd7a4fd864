"""Photographs: hashed features, matching, search, and the files of COLMAP and hloc."""

from typing import TYPE_CHECKING

from .._util.lazy import lazy_names

if TYPE_CHECKING:  # for type checkers; at run time `__getattr__` imports these names on first use
    from .drawing import draw_matches as draw_matches
    from .drawing import write_image as write_image
    from .features import HashedFeatures as HashedFeatures
    from .features import HashedSIFT as HashedSIFT
    from .match_files import write_matches as write_matches
    from .photo_index import PhotoIndex as PhotoIndex
    from .photo_matching import Photo as Photo
    from .photo_matching import PhotoMatches as PhotoMatches
    from .photo_matching import match_photos as match_photos
    from .photo_matching import read_photo as read_photo

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "drawing": ["draw_matches", "write_image"],
        "features": ["HashedFeatures", "HashedSIFT"],
        "match_files": ["write_matches"],
        "photo_index": ["PhotoIndex"],
        "photo_matching": ["Photo", "PhotoMatches", "match_photos", "read_photo"],
    },
)
