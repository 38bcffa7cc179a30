"""The audit of a source's log against its sinks: evidence is read, then judged by pure code."""
