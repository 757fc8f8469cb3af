"""The parts of the PostgreSQL token store: one for each thing that it keeps."""
