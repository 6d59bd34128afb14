"""Stages in pods: one pod, or a gang of pods, for each attempt of a stage."""
