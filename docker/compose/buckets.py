"""Creates the buckets named on the command line if they do not exist."""

import os
import sys

import boto3
from botocore.exceptions import ClientError

client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], region_name=os.environ["AWS_REGION"])
for name in sys.argv[1:]:
    try:
        client.head_bucket(Bucket=name)
    except ClientError:
        client.create_bucket(Bucket=name)
        sys.stdout.write(f"made bucket {name}\n")
