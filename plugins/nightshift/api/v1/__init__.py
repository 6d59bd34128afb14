"""The routes of version 1, by what they are about."""
