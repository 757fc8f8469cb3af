"""ostiary: authentication for those who run or program Kubernetes."""
