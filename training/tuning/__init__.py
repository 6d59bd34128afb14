"""The search for settings: a study's space, its trials, where they are kept, and what came of them. Optuna is imported here alone."""
