from nightshift.wiring.housekeeping import housekeeping_dag  # an Airflow DAG

dag = housekeeping_dag()
