"""The path of a radar beam: refractivity, geometry, arrival time and phase, their uncertainty and their units."""
