"""Differences between two trees: which stores are compared and how (`pairs`), logs with several topics in any order (`mixed`), and
the rules that `verify --against` runs (`replicas`).

The values themselves (`Difference`, `Tally`) are in `rawlog.core.difference`: families that compare in their own way use them too.
"""
