"""The release bundle `PTN_EXPORT/` of the pipeline card, summed and signed (PCS-19)."""
