"""`kfm doctor`: read-only checks of a deployment, with a next step by finding (BEY-11)."""
