"""Learning, encoding and searching on a Dask cluster.

Rows stay where they lie. What travels, for a fit:

- the ids of all rows, to whoever calls `fit`, who draws the pairs;
- the rows of the basis, and rows lent to pairs whose other member lies in another shard;
- sums: two l x l matrices for the directions, counts in bins for the thresholds.

For a search the codes lie in the workers' memory, and only queries and what was found travel.
"""

from .cluster import ClusterError, connect
from .encoding import encode
from .learning import fit, fit_pairs
from .searching import ClusterIndex

__all__ = ["ClusterError", "ClusterIndex", "connect", "encode", "fit", "fit_pairs"]
