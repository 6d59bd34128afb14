"""Metrics of a training: the journal in the store, and from there to MLflow."""
