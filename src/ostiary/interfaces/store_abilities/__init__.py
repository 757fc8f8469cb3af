"""What a token store may be able to besides `ostiary.interfaces.token_store.TokenStore`: one ability per file.

stored_objects   keep small named objects: service accounts, signing keys
moving           give out all it holds, and take it in: moved to another store, backed up, restored
examining        say how it is, and who else uses it
replicas         serve gateways on several machines: notes, counts, and whose store it is
"""
