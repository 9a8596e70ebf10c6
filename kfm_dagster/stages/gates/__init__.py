"""Gates G1 to G8 of the card: pure rules over a batch. Not here: their effect (`card.py`)."""
