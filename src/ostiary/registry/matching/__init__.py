"""Does a pattern match an image? As the kubelet answers."""
