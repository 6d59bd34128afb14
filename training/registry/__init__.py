"""Decisions: the ledger (the truth), the gates, and MLflow's registry, which follows the ledger."""
