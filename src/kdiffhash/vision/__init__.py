"""Photographs: hashed features, matching, search, and the files of COLMAP and hloc."""

from .drawing import draw_matches, write_image
from .features import HashedFeatures, HashedSIFT
from .match_files import write_matches
from .photo_index import PhotoIndex
from .photo_matching import Photo, PhotoMatches, match_photos, read_photo

__all__ = [
    "HashedFeatures",
    "HashedSIFT",
    "Photo",
    "PhotoIndex",
    "PhotoMatches",
    "draw_matches",
    "match_photos",
    "read_photo",
    "write_image",
    "write_matches",
]
