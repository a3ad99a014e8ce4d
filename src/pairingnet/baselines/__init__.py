"""The methods ours is compared with, behind the same protocol."""
