"""The five operators: message_parse makes envelopes, each other operator adds one section."""
