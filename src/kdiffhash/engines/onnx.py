"""Export models as ONNX graphs that turn descriptors into packed codes."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from .._util.extras import need
from .._util.files import replacing
from ..codes import n_bytes
from ..hashers import BaseHasher
from ..learn.kernels import GaussianMap, IdentityMap

_OPSET, _IR = 17, 8  # versions from 2022, so that older runtimes can load the graph


def export(hasher: BaseHasher, path: str | os.PathLike[str]) -> None:
    """Write a fitted hasher as an ONNX graph.

    The graph's input ``rows`` is float32 of shape (n, n_features), its output ``codes`` uint8 of
    shape (n, n_bytes). Less than one bit in a million differs from `transform`, because the runtime
    chooses the order in which the graph sums float64 values.

    Parameters
    ----------
    hasher : BaseHasher
        A fitted hasher, linear or with a Gaussian (``"rbf"``) or Mahalanobis kernel.
    path : str or path
        File to write. An existing file is replaced atomically.

    Raises
    ------
    ValueError
        If the hasher has a kernel that cannot be exported.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from kdiffhash import LDAHash
    >>> from kdiffhash.engines.onnx import export
    >>> X = np.random.default_rng(0).normal(size=(100, 8)).astype(np.float32)
    >>> hasher = LDAHash(n_bits=8, random_state=0).fit(X, np.arange(100) // 4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(hasher, f"{folder}/model.onnx")
    """
    from sklearn.utils.validation import check_is_fitted

    onnx = need("onnx", "onnx")
    check_is_fitted(hasher)
    model = _Graph(onnx, hasher).model()
    onnx.checker.check_model(model, full_check=True)
    with replacing(path) as temporary:
        temporary.write_bytes(model.SerializeToString())


class _Graph:
    """Nodes and constants of a graph under construction."""

    def __init__(self, onnx: Any, hasher: BaseHasher) -> None:
        self.helper, self.types, self.numpy = onnx.helper, onnx.TensorProto, onnx.numpy_helper
        self.hasher = hasher
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def model(self) -> Any:
        """Build the graph and return it as an ONNX model."""
        hasher, helper, types = self.hasher, self.helper, self.types
        values = self.features(self.preprocessed("rows"))
        directions = hasher.directions_.T.astype(np.float64)
        projections = self.add("MatMul", values, self.constant(directions))
        bits = self.add(
            "Greater", projections, self.constant(hasher.thresholds_.astype(np.float64))
        )
        self.packed(bits, "codes")
        n_features, width = hasher.n_features_in_, n_bytes(hasher.n_bits_)
        graph = helper.make_graph(
            self.nodes,
            type(hasher).__name__,
            [helper.make_tensor_value_info("rows", types.FLOAT, ["n", n_features])],
            [helper.make_tensor_value_info("codes", types.UINT8, ["n", width])],
            self.constants,
        )
        opset = [helper.make_opsetid("", _OPSET)]
        model = helper.make_model(graph, opset_imports=opset, producer_name="kdiffhash")
        model.ir_version = _IR
        helper.set_model_props(model, {"n_bits": str(hasher.n_bits_)})
        return model

    def add(self, kind: str, *inputs: str, out: str | None = None, **attributes: Any) -> str:
        """Append a node and return the name of its output."""
        name = out or f"v{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(self, value: Any) -> str:
        """Add a constant and return its name."""
        name = f"c{len(self.constants)}"
        self.constants.append(self.numpy.from_array(np.asarray(value), name))
        return name

    def preprocessed(self, rows: str) -> str:
        """Add the preprocessing, in float32 like `transform`, and return the name of its output."""
        kind = self.hasher.preprocess
        if kind is None:
            return rows
        axes = self.constant(np.array([1], np.int64))
        tiny = self.constant(np.float32(np.finfo(np.float32).tiny))
        if kind == "unit":
            largest = self.add("ReduceMax", self.add("Abs", rows), axes=[1])
            rows = self.add("Div", rows, self.add("Max", largest, tiny))
            square = self.add("ReduceSum", self.add("Mul", rows, rows), axes)
            return self.add("Div", rows, self.add("Max", self.add("Sqrt", square), tiny))
        total = self.add("ReduceSum", rows, axes)
        return self.add("Sqrt", self.add("Div", rows, self.add("Max", total, tiny)))

    def features(self, rows: str) -> str:
        """Add the centring or the kernel, in float64, and return the name of the features."""
        features = self.hasher._feature_map()
        if not isinstance(features, IdentityMap | GaussianMap):
            raise ValueError(
                f"kernel={getattr(self.hasher, 'kernel', None)!r} cannot be exported to ONNX; "
                "accepted are 'rbf', 'mahalanobis' and linear hashers"
            )
        rows = self.add("Cast", rows, to=self.types.DOUBLE)
        rows = self.add("Sub", rows, self.constant(features.shift.astype(np.float64)))
        if isinstance(features, IdentityMap):
            return rows
        basis = features.basis.astype(np.float64) - features.shift
        if features.metric is not None:
            metric = features.metric.astype(np.float64)
            rows = self.add("MatMul", rows, self.constant(metric))
            basis = basis @ metric
        # -gamma |x - b|^2 = 2 gamma x.b - gamma |x|^2 - gamma |b|^2
        gamma = float(features.gamma)
        products = self.add("MatMul", rows, self.constant(2 * gamma * basis.T))
        axes = self.constant(np.array([1], np.int64))
        squares = self.add("ReduceSum", self.add("Mul", rows, rows), axes)
        exponent = self.add("Sub", products, self.add("Mul", squares, self.constant(gamma)))
        column = self.constant(gamma * (basis**2).sum(axis=1))
        return self.add("Exp", self.add("Sub", exponent, column))

    def packed(self, bits: str, out: str) -> None:
        """Add the packing: eight bits per byte, most significant bit first, padded with zeros."""
        n_bits = self.hasher.n_bits_
        values = self.add("Cast", bits, to=self.types.FLOAT)
        spare = -n_bits % 8
        if spare:
            pads = self.constant(np.array([0, 0, 0, spare], np.int64))
            values = self.add("Pad", values, pads)
        shape = self.constant(np.array([-1, n_bytes(n_bits), 8], np.int64))
        groups = self.add("Reshape", values, shape)
        powers = self.constant(np.array([128, 64, 32, 16, 8, 4, 2, 1], np.float32))
        self.add("Cast", self.add("MatMul", groups, powers), out=out, to=self.types.UINT8)
