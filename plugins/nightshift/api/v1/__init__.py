"""The routes of version 1, by what they are about: the `router` of each module."""
