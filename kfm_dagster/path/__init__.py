"""The path of a radar beam: refractivity, geometry, arrival time, phase, uncertainty, units."""
