"""How good a model is: metrics, slices, significance, and the report for people."""
