"""What can be told of the files that a configuration names: certificates, secrets, directories."""
