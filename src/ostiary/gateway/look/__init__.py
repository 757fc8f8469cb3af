"""How the pages look to people, as far as the operator decides it: name, logo, colours, languages, icons."""
