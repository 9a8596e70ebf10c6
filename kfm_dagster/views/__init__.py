"""Views: lists of records, each with a filter, a row and a query, used by all interfaces."""
