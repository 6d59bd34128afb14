"""The ledger: decisions, the aliases of a model, semantic versions and orders to roll back. SQLAlchemy only: operators read it too."""
