"""Where work runs: here, or on several cores of this machine."""
