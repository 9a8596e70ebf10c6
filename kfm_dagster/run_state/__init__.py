"""Did this node already do this in this run?"""
