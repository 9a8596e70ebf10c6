"""The five operators: message_parse makes envelopes, each of the others adds one section."""
