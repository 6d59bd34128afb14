"""Whether a snapshot may be trained on. Fails closed: what cannot be checked has failed."""
