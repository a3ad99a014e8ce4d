"""Pair matches -> groups and poses -> canvas."""

from pairingnet.steps import make_callable

make_callable(__name__)
