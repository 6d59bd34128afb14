"""Suites of Great Expectations, judged by numbers of all rows."""
