"""The error of this machine's clock, and whether the error allows writing (PCS-10).

Readings come from the kernel and from the Date of a server's answer (`sources.py`), when `ingest/calibration.py`
requests them. They are recorded and judged by the configured rule (`reading.py`), and summarised as KPIs
(`quality.py`). This package never sets a clock and never fails a run; the stage acts on the decision.
"""
