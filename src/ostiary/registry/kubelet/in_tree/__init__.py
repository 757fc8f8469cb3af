"""What kubelets had inside before there were providers: their flags, and the file of the cloud that these name."""
