"""The paper's experiments on any data: rates, claims, figures and a report page."""

from .paper_runs import run_paper_study
from .results import Results
from .run import run_study

__all__ = ["Results", "run_paper_study", "run_study"]
