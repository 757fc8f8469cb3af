"""Decisions in the carrier: HAProxy keeps what the gateway has allowed, and asks about the rest.

    key               under which HAProxy looks a request up
    held              what this worker has put into HAProxy's map: bounded, by user and in all
    commands          the changes to the map that wait to be sent, as text of HAProxy's runtime socket
    runtime_socket    sends them
    pusher            puts decisions in, takes them out, and renews the lease on which all of them depend

A decision in the map is good only while the lease of the worker that put it there is. The worker renews that lease
while it knows of every revocation, and never past the moment until which it does: when the gateway stops, hangs, or
cannot ask its store, HAProxy asks again within seconds, and gets no answer or a 503.
"""
