from nightshift.wiring.pipeline import pipeline_dag  # an Airflow DAG

dag = pipeline_dag(__file__)
