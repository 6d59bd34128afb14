"""The process in which work runs: whether it moves, its folder for temporary files, which one it is, what it waits for."""
