"""Dead letters: messages of the dead-letter queue, listed, drained, redriven or discarded."""
