"""Where audit events go: a file, standard output, a webhook."""
