"""The scenarios, one module each, with `options(parser)` and `run(arguments) -> result`."""
