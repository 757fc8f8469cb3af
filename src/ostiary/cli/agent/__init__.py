"""``ostiary agent``: keeps a token of the gateway fresh for the programs beside it, in a file and on a socket.

command    the command line, signals        keeper    when to get another token, and what to do if there is none
sources    where a token comes from         files     how programs find it: token, ca.crt, namespace
token_socket    how programs ask for it, and who may
"""
