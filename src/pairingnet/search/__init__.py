"""Features -> ranked candidates."""

from pairingnet.steps import make_callable

make_callable(__name__)
