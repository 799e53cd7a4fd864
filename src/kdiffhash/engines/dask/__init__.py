"""Learning, encoding and searching on a Dask cluster.

Descriptors stay on the machines that hold them. To learn, only the labels and a sample of the
descriptors are sent to the client. To search, the codes are kept in the memory of the workers, and
only queries and results are sent.
"""

from .cluster import ClusterError, connect
from .encoding import encode
from .learning import fit, fit_pairs
from .searching import ClusterIndex

__all__ = ["ClusterError", "ClusterIndex", "connect", "encode", "fit", "fit_pairs"]
