"""`kfm doctor`: what a deployment needs, asked without changing anything, and for each finding what to do (BEY-11)."""
