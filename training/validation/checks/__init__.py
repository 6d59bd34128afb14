"""The checks that no user can remove."""
