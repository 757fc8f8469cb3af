"""What the tests of ``deploy/`` share: rendering, and the schemas that Kubernetes itself publishes."""
