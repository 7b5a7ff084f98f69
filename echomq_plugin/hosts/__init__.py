"""One module for each job queue that the library attaches to; each imports its host by itself, when it is imported."""
