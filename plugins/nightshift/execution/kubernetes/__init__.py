"""Stages in pods: for each launch a Pod, or for a training a Job of one or more members."""
