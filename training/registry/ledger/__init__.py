"""The ledger: decisions, the aliases of a model, and what hangs on them. SQLAlchemy only: operators read it too."""
