"""Arrays in files: a shard is one file of rows, and a folder of shards is read as one array."""

from .shard import Shard, Shards, is_shards, open_shards

__all__ = ["Shard", "Shards", "is_shards", "open_shards"]
