"""One module a verb, each with a click command named `command`."""
