"""How good a model is: metrics, intervals, slices, fairness, checks, latency."""
