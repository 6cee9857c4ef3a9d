"""`rawlog browse`: a local web page to walk directories, partitions, records and bytes."""
