"""A first pipeline of a table: `nightshift init` reads a file and writes YAML, suite and DAG file for it.

`tables` finds the columns and their types, `time_columns` how the time is read, `pipeline_draft` decides what the pipeline is,
`generated_files` writes it down, `command` is the command.
"""
