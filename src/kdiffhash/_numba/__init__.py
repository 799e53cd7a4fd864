"""Hot loops on plain arrays. Nothing here checks its input; the callers do."""
