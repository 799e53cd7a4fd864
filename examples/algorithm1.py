"""Algorithm 1 of "Kernel diff-hash" in plain NumPy, written from the paper, without kdiffhash.

Run it to learn codes of handwritten digits and see how far apart codes of equal and of different
digits are. The tests of kdiffhash use the functions as an independent reference.
"""

from __future__ import annotations

import numpy as np


def mahalanobis_kernel(X, basis, root, gamma):
    """Matrix of exp(-gamma (x - b)' S^(-1/2) (x - b)), shape (rows of X, basis rows).

    `root` is S^(-1/4), S the covariance of the data. The paper prints no bandwidth gamma; without
    one the kernel of SIFT descriptors is zero in floating point.
    """
    a, b = X @ root, basis @ root
    squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1) - 2 * a @ b.T
    return np.exp(-gamma * np.maximum(squares, 0))


def inverse_fourth_root(X):
    """S^(-1/4) of the covariance S of X; eigenvalues below 1e-4 of the largest are raised to it."""
    values, vectors = np.linalg.eigh(np.cov(X.T, bias=True))
    return (vectors * np.maximum(values, 1e-4 * values.max()) ** -0.25) @ vectors.T


def diff_hash(features, pairs, similar, n_bits, alpha=25.0):
    """Steps 2 to 5: unit eigenvectors with the smallest eigenvalues of C_N - alpha C_P, as rows.

    Expectations over pairs are of products of the two members, made symmetric. On kernel columns
    this is Algorithm 1, on centred descriptors the linear diff-hash.
    """
    moments = []
    for chosen in (pairs[~similar], pairs[similar]):
        cross = features[chosen[:, 0]].T @ features[chosen[:, 1]] / len(chosen)
        moments.append((cross + cross.T) / 2)
    return np.linalg.eigh(moments[0] - alpha * moments[1])[1].T[:n_bits]


def objective(projections, pairs, similar, threshold):
    """FNR + FPR of one bit: positive pairs that differ, negative pairs that agree.

    The paper weights the FNR by alpha here; with alpha = 25 every bit becomes constant.
    """
    bits = projections > threshold
    differ = bits[pairs[:, 0]] != bits[pairs[:, 1]]
    return differ[similar].mean() + (~differ[~similar]).mean()


def best_threshold(projections, pairs, similar):
    """Step 8: the threshold of least FNR + FPR, tried between all neighbouring projections.

    A pair differs for all thresholds from its smaller to its larger projection, so two cumulative
    sums give the rates everywhere at once.
    """
    values, ranks = np.unique(projections, return_inverse=True)
    low, high = np.sort(ranks[pairs], axis=1).T
    weights = np.where(similar, 1 / similar.sum(), -1 / (~similar).sum())
    change = np.bincount(low, weights, len(values)) - np.bincount(high, weights, len(values))
    best = np.argmin(np.cumsum(change)[:-1])  # FNR + FPR - 1
    return (values[best] + values[best + 1]) / 2


def kernel_diff_hash(X, pairs, similar, n_bits, basis, gamma, alpha=25.0):
    """Algorithm 1: returns a function that maps rows to bits, shape (n, n_bits)."""
    root = inverse_fourth_root(X)
    features = mahalanobis_kernel(X, basis, root, gamma)
    directions = diff_hash(features, pairs, similar, n_bits, alpha)
    projections = features @ directions.T
    thresholds = [best_threshold(column, pairs, similar) for column in projections.T]
    return lambda rows: mahalanobis_kernel(rows, basis, root, gamma) @ directions.T > thresholds


def main() -> None:
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    learn, test = np.arange(len(X)) % 2 == 0, np.arange(len(X)) % 2 == 1
    rng = np.random.default_rng(0)
    pairs = rng.integers(learn.sum(), size=(60_000, 2))
    similar = y[learn][pairs[:, 0]] == y[learn][pairs[:, 1]]
    basis = X[learn][rng.choice(learn.sum(), 300, replace=False)]
    root = inverse_fourth_root(X[learn])
    squares = -np.log(mahalanobis_kernel(X[learn][:200], basis, root, 1e-3)) / 1e-3
    encode = kernel_diff_hash(X[learn], pairs, similar, 64, basis, 1 / np.median(squares))

    bits, labels = encode(X[test]), y[test]
    distances = (bits[:, None] != bits).sum(axis=2)
    same = labels[:, None] == labels
    others = ~np.eye(len(bits), dtype=bool)
    print(f"64 bits, {len(bits)} digits that were not learned from; mean Hamming distance")
    print(f"  equal digits:     {distances[same & others].mean():5.1f}")
    print(f"  different digits: {distances[~same].mean():5.1f}")
    nearest = np.where(others, distances, 65).argmin(axis=1)
    print(f"nearest neighbour is the same digit: {(labels[nearest] == labels).mean():.1%}")


if __name__ == "__main__":
    main()
