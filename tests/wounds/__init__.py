"""One wound, one answer: every kind of damage × every verb × every family, judged by a truth that the tests keep.

| module | what it has |
|---|---|
| `truth` | records, frames and subjects: what a store holds, by the reference decoders |
| `kafka`, `kraft`, `rocketmq`, `ambry`, `replay` | the subjects of a family, and how its files are read |
| `wounds` | copies of subjects that are damaged, each with what it destroyed |
| `verbs` | how each verb is run, and the class it belongs to |
| `oracle` | what is wrong with an outcome |
| `table` | the table of exit codes in `docs/wounds.md` |
| `ledger` | the failures that are known, by row of the issue that names them: `known.txt` |

`python -m tests.wounds` runs a subject, a wound or everything, and writes the ledger.
"""
