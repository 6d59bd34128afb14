"""From the text of a YAML to a spec, or to everything that is wrong with it."""
