"""The kfm command."""
