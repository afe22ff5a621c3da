"""An HTTP server that speaks OpenAI's protocol, around the engine."""
