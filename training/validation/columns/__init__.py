"""The numbers of columns: for the report, for drift, and for suites."""
