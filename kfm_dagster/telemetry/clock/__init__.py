"""The clock that the pipeline writes by: its error, and whether that allows writing (PCS-10).

Readings come from the kernel (`kernel.py`) and from the Date of a server's answer (`server_dates.py`), once per run
(`measuring.py`); they are kept (`log.py`), judged by the configured rules (`decision.py`) and summed up as KPIs
(`quality.py`). Nothing here sets a clock, and nothing here fails a run: what follows from a decision is the stage's.
"""
