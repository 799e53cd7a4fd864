"""Choose parameters by cross-validation, with all rows of an object in the same fold."""

from __future__ import annotations

import numpy as np
from sklearn.model_selection import GridSearchCV, GroupKFold

from kdiffhash import KernelLDAHash

# 300 objects with six rows each; half of the features are noise.
rng = np.random.default_rng(0)
y = np.repeat(np.arange(300), 6)
X = rng.normal(size=(300, 20))[y] * (np.arange(20) < 10) + 0.5 * rng.normal(size=(1800, 20))

search = GridSearchCV(
    KernelLDAHash(n_bits=64, n_basis=300, random_state=0, n_positives=5_000, n_negatives=10_000),
    {"ridge": [1e-4, 1e-3, 1e-2, 1e-1], "preprocess": [None, "unit"]},
    cv=GroupKFold(3),
)
search.fit(X, y, groups=y)
for params, score in zip(search.cv_results_["params"], search.cv_results_["mean_test_score"]):
    print(f"{params}: recall {score:.1%} at 1 % FPR")
print("best:", search.best_params_)
