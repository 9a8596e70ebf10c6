"""Views: lists of what is recorded, each by a filter, a row and a query, from which every face is derived."""
