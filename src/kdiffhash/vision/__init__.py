"""Photographs: features with codes, matching, search, and files of COLMAP and hloc."""

from .drawing import draw_matches, write_picture
from .features import HashedFeatures, HashedSIFT
from .photo_index import PhotoIndex
from .photos import Photo, PhotoMatches, match_photos, read_photo

__all__ = [
    "HashedFeatures",
    "HashedSIFT",
    "Photo",
    "PhotoIndex",
    "PhotoMatches",
    "draw_matches",
    "match_photos",
    "read_photo",
    "write_picture",
]
