from nightshift.rollbacks import rollback_dag  # an Airflow DAG

dag = rollback_dag()
