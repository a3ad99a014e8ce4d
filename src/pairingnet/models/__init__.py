"""The networks: paper.py is the paper's; weights are loaded strictly and safely."""
