"""Pictures as SVG text. Does not belong here: where their values come from."""
