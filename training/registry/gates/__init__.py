"""Gates: from the numbers of an evaluation to reasons, and to a decision."""
