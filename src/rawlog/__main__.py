"""`python -m rawlog` is `rawlog`, and the console script enters here."""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C while modules are imported ends the process without a traceback. `main` handles it afterwards.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from rawlog.cli import main

if __name__ == "__main__":
    main()
