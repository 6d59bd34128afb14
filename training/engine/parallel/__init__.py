"""How several processes train one model: the strategy, and the gang that they are."""
