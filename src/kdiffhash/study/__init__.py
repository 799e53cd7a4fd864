"""The paper's experiments on any data: rates, claims, figures and a report page."""

from .run import Results, run_study

__all__ = ["Results", "run_study"]
