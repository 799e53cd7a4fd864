"""Algorithm 1 of "Kernel diff-hash" in plain NumPy, written from the paper, without kdiffhash.

Run it to learn codes of handwritten digits and to compare the distances between codes of the same
digit with those between codes of different digits. The tests of kdiffhash use these functions as an
independent reference.
"""

from __future__ import annotations

import numpy as np


def mahalanobis_kernel(X, basis, root, gamma):
    """Compute exp(-gamma (x - b)' S^(-1/2) (x - b)) for all x and b, shape (len(X), len(basis)).

    `root` is S^(-1/4), where S is the covariance of the data. The paper gives no bandwidth gamma;
    without one, the kernel of SIFT descriptors is zero in floating point.
    """
    a, b = X @ root, basis @ root
    squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1) - 2 * a @ b.T
    return np.exp(-gamma * np.maximum(squares, 0))


def inverse_fourth_root(X):
    """Compute S^(-1/4) for the covariance S of X.

    Eigenvalues of S below 1e-4 times the largest one are raised to that value.
    """
    values, vectors = np.linalg.eigh(np.cov(X.T, bias=True))
    return (vectors * np.maximum(values, 1e-4 * values.max()) ** -0.25) @ vectors.T


def diff_hash(features, pairs, similar, n_bits, alpha=25.0):
    """Steps 2 to 5: return the directions, unit eigenvectors of C_N - alpha C_P, one per row.

    The eigenvectors with the smallest eigenvalues are used. C_P and C_N are symmetrised means of
    the outer products of both members of positive and negative pairs. Applied to kernel values this
    is Algorithm 1, applied to centred descriptors it is linear diff-hash.
    """
    moments = []
    for left, right in (pairs[~similar].T, pairs[similar].T):
        cross = features[left].T @ features[right] / len(left)
        moments.append((cross + cross.T) / 2)
    return np.linalg.eigh(moments[0] - alpha * moments[1])[1].T[:n_bits]


def objective(projections, pairs, similar, threshold):
    """Compute FNR + FPR of one bit.

    A positive pair is a false negative if its bits differ, a negative pair is a false positive if
    they agree. The paper weights the FNR by alpha; with alpha = 25 every bit becomes constant.
    """
    bits = projections > threshold
    differ = bits[pairs[:, 0]] != bits[pairs[:, 1]]
    return differ[similar].mean() + (~differ[~similar]).mean()


def best_threshold(projections, pairs, similar):
    """Step 8: find the threshold with the smallest FNR + FPR.

    Candidates lie between all neighbouring projections. The bits of a pair differ for all
    thresholds between its two projections, so a cumulative sum gives the rates of all candidates.
    """
    values, ranks = np.unique(projections, return_inverse=True)
    low, high = np.sort(ranks[pairs], axis=1).T
    weights = np.where(similar, 1 / similar.sum(), -1 / (~similar).sum())
    change = np.bincount(low, weights, len(values)) - np.bincount(high, weights, len(values))
    best = np.argmin(np.cumsum(change)[:-1])  # FNR + FPR - 1
    return (values[best] + values[best + 1]) / 2


def kernel_diff_hash(X, pairs, similar, n_bits, basis, gamma, alpha=25.0):
    """Algorithm 1: return a function that maps rows to bits, shape (n, n_bits)."""
    root = inverse_fourth_root(X)
    features = mahalanobis_kernel(X, basis, root, gamma)
    directions = diff_hash(features, pairs, similar, n_bits, alpha)
    projections = features @ directions.T
    thresholds = [best_threshold(column, pairs, similar) for column in projections.T]
    return lambda rows: mahalanobis_kernel(rows, basis, root, gamma) @ directions.T > thresholds


def main() -> None:
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    train, test = np.arange(len(X)) % 2 == 0, np.arange(len(X)) % 2 == 1
    rng = np.random.default_rng(0)
    pairs = rng.integers(train.sum(), size=(60_000, 2))
    similar = y[train][pairs[:, 0]] == y[train][pairs[:, 1]]
    basis = X[train][rng.choice(train.sum(), 300, replace=False)]
    root = inverse_fourth_root(X[train])
    squares = -np.log(mahalanobis_kernel(X[train][:200], basis, root, 1e-3)) / 1e-3
    encode = kernel_diff_hash(X[train], pairs, similar, 64, basis, 1 / np.median(squares))

    bits, labels = encode(X[test]), y[test]
    distances = (bits[:, None] != bits).sum(axis=2)
    same = labels[:, None] == labels
    off_diagonal = ~np.eye(len(bits), dtype=bool)
    print(f"mean Hamming distance of 64-bit codes, {len(bits)} test images")
    print(f"  same digit:       {distances[same & off_diagonal].mean():5.1f}")
    print(f"  different digits: {distances[~same].mean():5.1f}")
    nearest = np.where(off_diagonal, distances, 65).argmin(axis=1)
    print(f"nearest neighbour shows the same digit: {(labels[nearest] == labels).mean():.1%}")


if __name__ == "__main__":
    main()
