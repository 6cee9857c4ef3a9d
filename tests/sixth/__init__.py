"""A sixth system, added to rawlog from outside: nothing of `src` names it. `docs/adding-a-format.md` explains it file by file."""
