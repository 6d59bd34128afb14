from nightshift.wiring.rollback import rollback_dag  # an Airflow DAG

dag = rollback_dag()
