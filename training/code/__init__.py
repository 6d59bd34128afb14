"""Which files make a stage's work: the closure of its imports, and the check that no other file was used."""
