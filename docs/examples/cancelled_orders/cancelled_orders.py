from nightshift.factory import pipeline_dag  # an Airflow DAG

dag = pipeline_dag(__file__)
