"""`kfm doctor`: read-only checks of a deployment, with a next step for each finding (BEY-11)."""
