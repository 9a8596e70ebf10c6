"""Gates G1 to G8 of the pipeline card: pure rules over a batch. Not here: what follows from them (`card.py`)."""
