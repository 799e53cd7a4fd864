"""Rows in files: one file, or a folder of them that is read as one long array."""

from .shard import Shard, Shards, is_shards, open_shards

__all__ = ["Shard", "Shards", "is_shards", "open_shards"]
