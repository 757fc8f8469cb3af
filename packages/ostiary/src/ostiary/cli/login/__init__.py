"""The client's side of signing in at a gateway, shared by get-token, login, logout, whoami and kubeconfig.

options     which gateway, which account                 gateway     its endpoints over HTTP
turn        one sign-in for any number of processes      jwt_credential   a JWT for a cluster
sessions    what is kept between two runs                files       private files and locks
person      with a browser, a device code or a password  platforms   as a CI job or pod, with nobody asked
"""
