"""Gates G1 to G8 of the card: pure rules over a batch; `stages/machine.py` has their effect."""
