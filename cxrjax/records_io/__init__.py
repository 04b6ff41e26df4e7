"""Records on disk: reading, checking, dividing and writing them, whatever data set they are of."""

from cxrjax.paper import Paper

RECORDS = Paper(
    "records",
    help="images and records of one's own",
    builder="cxrjax.records_io.own_records:OwnRecordsBuilder",
)
SHARDS = Paper(
    "shards", help="a build, in shards", builder="cxrjax.records_io.shards:ShardsBuilder"
)
SIZES = Paper(
    "sizes",
    help="a build, with sizes of images",
    builder="cxrjax.records_io.csv_table:SizesBuilder",
)
TFDS = Paper(
    "tfds",
    help="a build or its shards, as a TFDS data set",
    builder="cxrjax.records_io.tfds_build:TfdsBuilder",
)
