"""`python -m rawlog` is `rawlog`."""

from rawlog.cli import main

if __name__ == "__main__":
    main()
