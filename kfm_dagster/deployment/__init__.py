"""A whole deployment on one machine: daemon, code server, web server, and a database server where one is asked for."""
