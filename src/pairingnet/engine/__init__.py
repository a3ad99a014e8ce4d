"""Where work runs: here, on several cores of this machine, or on a cluster."""
