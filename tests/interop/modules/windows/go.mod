module windows-python

go 1.26.0

require github.com/kluctl/go-embed-python v0.0.0-3.11.11-20241219-1
