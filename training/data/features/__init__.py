"""Transforms: from raw columns to the cells of a model, fitted on training rows alone, the same in serving."""
