"""`rawlog browse`: a local web page to walk directories, partitions, records and bytes. It reads, and only what it was opened for.

The package is not called `browse`: that is the function of `rawlog`, and a package of its name would replace it.
"""
