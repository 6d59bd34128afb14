"""What an installation knows of its runs, models and data, as typed records: the REST API's answers, and its client's."""
