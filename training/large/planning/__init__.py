"""Which layout a training needs, from the size of its model and the memory of its devices."""
