"""What an installation keeps of what it writes: the settings, and the command that collects the rest."""
