"""`kfm doctor`: read-only checks of a deployment; each fault has its next step (BEY-11)."""
