"""How sure a difference between two models is."""
