"""What people see in a browser: templates, the pages made of them, and what each page may do."""
