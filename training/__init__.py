"""What happens inside a stage. Knows nothing of Airflow or Kubernetes."""
