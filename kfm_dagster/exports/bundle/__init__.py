"""The release bundle `PTN_EXPORT/`: what the pipeline card asks to be handed on, summed and signed (PCS-19)."""
