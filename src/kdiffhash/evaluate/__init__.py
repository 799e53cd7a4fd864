"""Evaluation of distances on pairs: ROC curves, confidence intervals and distance thresholds."""
