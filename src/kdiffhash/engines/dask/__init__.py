"""Learning, encoding and searching on a Dask cluster.

Rows stay where they lie. For a fit, the labels of all rows and those rows that learning needs, a
sample, travel to the caller. For a search the codes lie in the workers' memory, and only queries
and results travel.
"""

from .cluster import ClusterError, connect
from .encoding import encode
from .learning import fit, fit_pairs
from .searching import ClusterIndex

__all__ = ["ClusterError", "ClusterIndex", "connect", "encode", "fit", "fit_pairs"]
