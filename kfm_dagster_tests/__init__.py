"""Tests of kfm_dagster."""
