"""MLflow's registry and runs, which follow the ledger."""
