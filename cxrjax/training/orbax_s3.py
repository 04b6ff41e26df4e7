"""Orbax on S3: it writes to `gs://` by TensorStore's driver, and takes other addresses for folders.

TensorStore has a driver for S3 too, and an object appears there whole or not at all as in GCS: what
Orbax does for `gs://` is right for `s3://`. The functions here replace those that tell them apart,
of the version that setup.py names.

Both drivers would try again for a quarter of an hour; here for about a minute, as s3fs and gcsfs.
"""

import os
from typing import Any

from orbax.checkpoint._src.path import gcs_utils
from orbax.checkpoint._src.serialization import tensorstore_utils

RETRIES = {"max_retries": 6, "initial_delay": "1s", "max_delay": "32s"}
_of_gcs = gcs_utils.get_kvstore_for_gcs
_normalized = tensorstore_utils._normalize_path


def enable() -> None:
    """Lets Orbax save to and restore from `s3://`."""
    gcs_utils._GCS_PATH_PREFIX = ("gs://", "s3://")
    gcs_utils.get_kvstore_for_gcs = _kvstore
    tensorstore_utils._use_gcs_driver = lambda directory: directory.startswith(("gs://", "s3://"))
    tensorstore_utils._normalize_path = lambda path: _normalized(path).replace("s3:/", "s3://")


def _kvstore(path: str) -> dict[str, Any]:
    if not path.startswith("s3://"):
        return {**_of_gcs(path), "gcs_request_retries": RETRIES}
    bucket, _, key = path.removeprefix("s3://").partition("/")
    spec: dict[str, Any] = {"driver": "s3", "bucket": bucket, "path": key}
    spec["s3_request_retries"] = RETRIES
    # What botocore reads for s3fs, TensorStore is told.
    if endpoint := os.environ.get("AWS_ENDPOINT_URL"):
        spec["endpoint"] = endpoint
        spec["aws_region"] = os.environ.get("AWS_REGION", "us-east-1")
    if "AWS_ACCESS_KEY_ID" in os.environ:
        spec["aws_credentials"] = {"type": "environment"}
    return spec
