"""`python -m pairingnet` is the same as `pairingnet`."""

from pairingnet.cli import main

main()
