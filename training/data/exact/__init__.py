"""Sums, moments and quantiles that do not depend on the order or the division of the values."""
