"""The public surface: every name that users write or read, as one text that is compared before and after a change."""
