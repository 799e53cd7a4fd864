"""Adapters to other systems, one module each: Dask, FAISS, ONNX, PostgreSQL, SQLite."""
